"""A layer's small operations: FlashInfer's kernels, stood in for, against plain torch.

Plain torch against transformers is `test_decoder`; the stand-in against the package's own
references is `test_flashinfer_oracles`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from radixserve.models.flashinfer_ops import FlashInferOps
from radixserve.models.loader import load_model
from radixserve.models.ops import PLAIN_OPS
from radixserve.models.rotary import RotaryTable
from radixserve.models.rotary_config import RotarySpec
from tests.attention.flashinfer_stand_in import StandInPackage
from tests.kit.dense_attention import DenseAttention
from tests.kit.families import LLAMA3, YARN
from tests.kit.tiny_model import write_tiny_model

if TYPE_CHECKING:
    from pathlib import Path

    from radixserve.models.decoder import CausalLM

DTYPES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
EPS = 1e-5
HEAD_DIM = 64

MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama, tied": {"tie_word_embeddings": True},
    "llama, biases everywhere": {"attention_bias": True, "mlp_bias": True},
    "llama, one kv head": {"num_key_value_heads": 1},
    "llama, heads of 128": {"head_dim": 128},
    "llama, linear": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "llama, llama3": {"rope_scaling": LLAMA3},
    "llama, yarn": {"rope_scaling": YARN},
    "llama, yarn with a factor": {"rope_scaling": {**YARN, "attention_factor": 0.8}},
    "mistral": {},
    "qwen2": {},
    "qwen3": {},
    "qwen3, yarn": {"rope_scaling": YARN},
}


def logits_of(model: CausalLM, *chunks: int) -> Tensor:
    """Return the logits of 60 tokens in chunks."""
    ids = torch.randint(0, 512, (sum(chunks),), generator=torch.Generator().manual_seed(3))
    attention = DenseAttention()
    starts = [sum(chunks[:place]) for place in range(len(chunks))]
    with torch.inference_mode():
        hidden = [
            model(ids[start : start + size], torch.arange(start, start + size), attention)
            for start, size in zip(starts, chunks, strict=True)
        ]
        return model.compute_logits(torch.cat(hidden))


def distance(ours: Tensor, exact: Tensor) -> float:
    """Return the root mean square of the difference, in standard deviations."""
    return float((ours - exact).pow(2).mean().sqrt() / exact.std())


@DTYPES
@pytest.mark.parametrize("name", MODELS)
def test_a_model_over_the_kernels_is_as_near_to_float32_as_in_plain_torch(
    name: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    family = name.partition(",")[0]
    folder = write_tiny_model(tmp_path, family=family, **{"head_dim": HEAD_DIM} | MODELS[name])
    exact = logits_of(load_model(folder, dtype=torch.float32).model, 60)
    model = load_model(folder, dtype=dtype).model

    plain = logits_of(model, 40, 1, 19)
    fused = logits_of(model.with_ops(StandInPackage().ops()), 40, 1, 19)

    assert not torch.equal(fused, plain), "the kernels round elsewhere"
    assert distance(fused, exact) < 1.05 * distance(plain, exact)
    assert distance(fused, plain) < 1.1 * distance(plain, exact)


def test_a_rotation_that_is_left_out_would_be_seen(tmp_path: Path) -> None:
    """How far apart what differs by more than rounding is, on the scale of the test above."""

    class Unrotated(FlashInferOps):
        def rotation(self, table: RotaryTable, positions: Tensor) -> Any:
            return super().rotation(table, torch.zeros_like(positions))

    model = load_model(write_tiny_model(tmp_path, head_dim=HEAD_DIM), dtype=torch.bfloat16).model
    exact = logits_of(load_model(tmp_path, dtype=torch.float32).model, 60)

    spoilt = logits_of(model.with_ops(Unrotated(StandInPackage())), 60)

    assert distance(spoilt, exact) > 5 * distance(logits_of(model, 60), exact)


def test_another_models_operations_leave_the_first_as_it_was(tmp_path: Path) -> None:
    model = load_model(write_tiny_model(tmp_path, head_dim=HEAD_DIM), dtype=torch.bfloat16).model
    before, package = logits_of(model, 20), StandInPackage()

    fused = model.with_ops(package.ops())

    logits_of(fused, 20)
    num_calls = len(package.calls)
    assert torch.equal(logits_of(model, 20), before)
    assert len(package.calls) == num_calls > 0
    assert fused.embedding is model.embedding
    assert fused.layers is model.layers


def test_each_sum_is_made_by_the_norm_that_follows_it(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, family="qwen3", head_dim=HEAD_DIM)
    package = StandInPackage()

    logits_of(load_model(folder, dtype=torch.bfloat16).model.with_ops(package.ops()), 5)

    rotate = ["rmsnorm", "rmsnorm", "apply_rope_with_cos_sin_cache_inplace"]
    layer = [*rotate, "fused_add_rmsnorm", "silu_and_mul", "fused_add_rmsnorm"]
    assert package.names() == ["rmsnorm", *layer, *layer]


def test_every_pass_reads_the_one_table_that_was_made_with_the_model(tmp_path: Path) -> None:
    """A table made in a pass would be made anew in each replay of its graph, or be gone."""
    model = load_model(write_tiny_model(tmp_path, head_dim=HEAD_DIM), dtype=torch.bfloat16).model
    package = StandInPackage()

    logits_of(model.with_ops(package.ops()), 3, 2)

    name = "apply_rope_with_cos_sin_cache_inplace"
    tables = [call.args[4] for call in package.calls if call.name == name]
    assert len(tables) == 4
    assert {table.data_ptr() for table in tables} == {model.rotary.cos_sin.data_ptr()}


def test_nothing_in_a_pass_asks_for_a_number_of_the_device(tmp_path: Path) -> None:
    """Where a capture would fail: tensors without numbers have none to give."""
    loaded = load_model(write_tiny_model(tmp_path, family="qwen3", head_dim=64), dtype=torch.half)
    model = loaded.model.to("meta").with_ops(StandInPackage().ops())

    class Unasked(DenseAttention):
        def run(self, layer_id: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return torch.empty_like(q)

    ids = torch.zeros(4, dtype=torch.int64, device="meta")

    assert model(ids, ids, Unasked()).shape == (4, 64)


# -- each operation ----------------------------------------------------------------------------


def assert_near(ours: Tensor, theirs: Tensor) -> None:
    """Assert that they differ by no more than what is rounded once and what is rounded twice."""
    step = torch.finfo(theirs.dtype).eps
    torch.testing.assert_close(ours, theirs, rtol=2 * step, atol=step)


def draw(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


@DTYPES
def test_a_norm_is_that_of_plain_torch(dtype: torch.dtype) -> None:
    x, weight = draw(7, 512, dtype=dtype), draw(512, dtype=dtype)

    ours = StandInPackage().ops().norm(x, weight, EPS)

    assert_near(ours, PLAIN_OPS.norm(x, weight, EPS))


@DTYPES
def test_a_sum_is_that_of_plain_torch_and_its_norm_is_nearer_to_the_exact_one(
    dtype: torch.dtype,
) -> None:
    share, residual, weight = (draw(n, 512, dtype=dtype) for n in (7, 7, 1))
    residual = residual.flip(0) * 8
    exact_sum = share.double() + residual.double()
    exact = torch.nn.functional.rms_norm(exact_sum, (512,), weight[0].double(), EPS)
    theirs_sum, ours_sum = residual.clone(), residual.clone()

    theirs = PLAIN_OPS.add_norm(share.clone(), theirs_sum, weight[0], EPS)
    ours = StandInPackage().ops().add_norm(share.clone(), ours_sum, weight[0], EPS)

    assert torch.equal(ours_sum, theirs_sum)
    assert_near(ours, theirs)
    assert (ours - exact).abs().mean() < (theirs - exact).abs().mean()


@DTYPES
def test_heads_are_normed_where_they_lie_as_in_plain_torch(dtype: torch.dtype) -> None:
    ours, weight = draw(5, 8, HEAD_DIM, dtype=dtype), draw(HEAD_DIM, dtype=dtype)
    theirs = ours.clone()

    StandInPackage().ops().norm_heads_(ours[:, 2:5], weight, EPS)
    PLAIN_OPS.norm_heads_(theirs[:, 2:5], weight, EPS)

    assert_near(ours, theirs)
    assert torch.equal(ours[:, 5:], theirs[:, 5:])


@DTYPES
def test_heads_are_rotated_where_they_lie_as_in_plain_torch(dtype: torch.dtype) -> None:
    table = RotaryTable(RotarySpec(), head_dim=HEAD_DIM, max_position=4096)
    positions = torch.tensor([4095, 0, 17, 17, 1000])
    ours = draw(5, 8, HEAD_DIM, dtype=dtype)
    theirs, before = ours.clone(), ours.clone()

    StandInPackage().ops().rotation(table, positions).rotate_(ours[:, :6], 4)
    PLAIN_OPS.rotation(table, positions).rotate_(theirs[:, :6], 4)

    assert_near(ours, theirs)
    assert torch.equal(ours[:, 6:], before[:, 6:])
    assert not torch.equal(ours[0, 5], before[0, 5])


@DTYPES
def test_a_gate_is_rounded_once_and_nearer_to_the_exact_one(dtype: torch.dtype) -> None:
    gate_up = draw(7, 2 * 96, dtype=dtype)
    gate, up = gate_up.double().chunk(2, dim=-1)
    exact = torch.nn.functional.silu(gate) * up

    ours, theirs = StandInPackage().ops().silu_mul(gate_up), PLAIN_OPS.silu_mul(gate_up)

    assert_near(ours, theirs)
    assert (ours - exact).abs().mean() < (theirs - exact).abs().mean()
