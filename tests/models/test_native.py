"""The model on the native kernels against the model in plain torch."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from radixserve import kernels
from radixserve.attention.build import build_metadata
from radixserve.attention.cpu import CpuAttention
from radixserve.models.loader import load_model
from radixserve.models.native import NativeLM
from radixserve.runtime.kv_cache import KVCache
from radixserve.types import pack_ids
from tests.kit.dense_attention import DenseAttention
from tests.kit.families import FAMILIES

if TYPE_CHECKING:
    from pathlib import Path

    from radixserve.models.native_layer import Keep

pytestmark = pytest.mark.skipif(not kernels.is_available(), reason=kernels.why_not())

BLOCK_SIZE = 4
NUM_BLOCKS = 64
IDS = torch.randint(0, 160, (60,), generator=torch.Generator().manual_seed(3))


class Runner:
    """A native model over a pool of its own; each request has blocks of its own."""

    def __init__(
        self,
        folder: Path,
        *,
        dtype: torch.dtype = torch.float32,
        keep: Keep = "lossless",
        capacity: int = 64,
    ) -> None:
        loaded = load_model(folder, dtype=dtype)
        pool = KVCache.allocate(loaded.spec, NUM_BLOCKS, BLOCK_SIZE, dtype)
        self.attention = CpuAttention(pool.layers, num_qo_heads=loaded.spec.num_qo_heads)
        self.model = NativeLM(
            loaded.model, loaded.spec, self.attention, keep=keep, capacity=capacity
        )

    def hidden(self, *chunks: tuple[torch.Tensor, int, int]) -> torch.Tensor:
        """Run one step over (ids, position of the first, first block) of each request."""
        tables = [pack_ids(range(block, block + 16)) for _, _, block in chunks]
        metadata = build_metadata(
            qo_lens=[len(ids) for ids, _, _ in chunks],
            starts=[start for _, start, _ in chunks],
            tables=tables,
            block_size=BLOCK_SIZE,
        )
        self.attention.plan(metadata)
        ids = torch.cat([ids for ids, _, _ in chunks])
        return self.model(ids, metadata.positions, self.attention).clone()

    def logits(self, *lens: int) -> torch.Tensor:
        """Return the logits of IDS, computed in chunks of these lengths, the rest at last."""
        ends = [*itertools.accumulate(lens), len(IDS)]
        hidden = [
            self.hidden((IDS[start:end], start, 0))
            for start, end in itertools.pairwise(dict.fromkeys([0, *ends]))
        ]
        return self.model.compute_logits(torch.cat(hidden))


def plain_logits(folder: Path) -> torch.Tensor:
    loaded = load_model(folder, dtype=torch.float32)
    with torch.inference_mode():
        hidden = loaded.model(IDS, torch.arange(len(IDS)), DenseAttention())
        return loaded.model.compute_logits(hidden)


def write(family: str, folder: Path) -> Path:
    torch.manual_seed(7)
    auto: Any = AutoModelForCausalLM
    model = auto.from_config(FAMILIES[family]).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or "bias" in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_plain_torch(family: str, tmp_path: Path) -> None:
    folder = write(family, tmp_path)

    torch.testing.assert_close(Runner(folder).logits(), plain_logits(folder), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_chunks_and_single_tokens_give_the_bits_of_the_whole(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    folder = write("qwen3", tmp_path)
    whole = Runner(folder, dtype=dtype).logits()

    for lens in ((11, 1, 18), (1,) * 59, (59,)):
        assert torch.equal(Runner(folder, dtype=dtype).logits(*lens), whole)


def test_neighbours_do_not_change_a_bit(tmp_path: Path) -> None:
    folder = write("llama", tmp_path)
    alone = Runner(folder).hidden((IDS[:20], 0, 0))

    together = Runner(folder).hidden((IDS[30:31], 0, 16), (IDS[:20], 0, 0), (IDS[40:47], 0, 32))

    assert torch.equal(together[1:21], alone)


def test_buffers_grow_with_the_batch(tmp_path: Path) -> None:
    folder = write("llama", tmp_path)

    assert torch.equal(Runner(folder, capacity=1).logits(), Runner(folder).logits())


def test_logits_of_more_rows_than_fit_at_once(tmp_path: Path) -> None:
    runner = Runner(write("llama", tmp_path))
    hidden = runner.hidden((IDS, 0, 0))

    many = runner.model.compute_logits(torch.cat([hidden] * 3))

    assert torch.equal(many, torch.cat([runner.model.compute_logits(hidden)] * 3))
    assert runner.model.compute_logits(hidden[:0]).shape == (0, 160)


@pytest.mark.parametrize(("keep", "most"), [("lossless", 1e-5), ("int8", 0.1)])
def test_smaller_weights_stay_near(keep: Keep, most: float, tmp_path: Path) -> None:
    folder = write("llama tied", tmp_path)
    exact = plain_logits(folder)

    error = (Runner(folder, keep=keep).logits() - exact).pow(2).mean().sqrt() / exact.std()

    assert error < most


def test_weights_that_bfloat16_holds_are_kept_as_it(tmp_path: Path) -> None:
    folder = write("llama", tmp_path)

    assert Runner(folder).model.weight_dtype == "float32"
    assert Runner(folder, dtype=torch.bfloat16).model.weight_dtype == "bfloat16"
