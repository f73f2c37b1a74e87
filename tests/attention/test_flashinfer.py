"""FlashInferAttention on a CPU: over a package that computes with the reference."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve.attention.build import build_metadata
from radixserve.attention.flashinfer import (
    FLAT,
    FlashInferAttention,
    FlashInferOptions,
    load_kernels,
    load_package,
)
from radixserve.attention.flashinfer_args import is_pure_decode, pad_decode
from radixserve.attention.kv_writer import KVScale
from radixserve.attention.layer_kv import LayerKV
from radixserve.attention.levels import find_levels
from radixserve.attention.reference import ReferenceAttention
from radixserve.config import CascadeConfig
from radixserve.errors import BackendUnavailableError, InvariantError
from radixserve.types import pack_ids
from tests.attention.conformance import CASES, Case, check_attention_backend
from tests.attention.flashinfer_stand_in import StandInPackage
from tests.attention.trees import Batch, batches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from radixserve.attention.backend import AttentionBackend
    from radixserve.attention.metadata import AttentionMetadata

EAGER = CascadeConfig(min_sharers=2, min_shared_tokens=1)
BUCKETS = (1, 2, 4, 8)

FLASHINFER_CASES = [replace(case, dtype=torch.float16) for case in CASES if case.kv_dtype is None]


def make_flat(
    layers: Sequence[LayerKV], num_qo_heads: int, *, package: StandInPackage | None = None
) -> FlashInferAttention:
    return make(layers, num_qo_heads, FlashInferOptions(cascade=FLAT), package)


def make_cascade(
    layers: Sequence[LayerKV], num_qo_heads: int, *, package: StandInPackage | None = None
) -> FlashInferAttention:
    return make(layers, num_qo_heads, FlashInferOptions(cascade=EAGER), package)


def make(
    layers: Sequence[LayerKV],
    num_qo_heads: int,
    options: FlashInferOptions,
    package: StandInPackage | None = None,
) -> FlashInferAttention:
    return FlashInferAttention(
        layers,
        num_qo_heads=num_qo_heads,
        options=options,
        kernels=(package or StandInPackage()).kernels(),
    )


class ThroughGraphs:
    """A backend that pads each pure decode to a bucket, and takes the rows added off again.

    The last block of the pool is the dummy one, and is put back as it was.
    """

    def __init__(self, layers: Sequence[LayerKV], num_qo_heads: int) -> None:
        self._layers = layers
        self._eager = make_flat(layers, num_qo_heads)
        self._graphs = {n: self._eager.for_graph(n) for n in sorted(BUCKETS, reverse=True)}
        self._active: AttentionBackend = self._eager
        self._extra = 0

    def plan(self, metadata: AttentionMetadata) -> None:
        if not is_pure_decode(metadata):
            self._active, self._extra = self._eager, 0
            self._eager.plan(metadata)
            return
        bucket = min(n for n in BUCKETS if n >= metadata.num_reqs)
        self._active, self._extra = self._graphs[bucket], bucket - metadata.num_reqs
        self._active.plan(pad_decode(metadata, bucket, len(self._layers[0].k) - 1))

    def run(self, layer_id: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        padded = (torch.cat((x, x.new_zeros(self._extra, *x.shape[1:]))) for x in (q, k, v))
        out = self._active.run(layer_id, *padded)
        for pool in (self._layers[layer_id].k, self._layers[layer_id].v):
            pool[-1] = torch.nan
        return out[: len(q)]


@pytest.mark.parametrize("case", FLASHINFER_CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("make_backend", [make_flat, make_cascade, ThroughGraphs])
def test_it_conforms_over_the_stand_in(case: Case, make_backend: Any) -> None:
    check_attention_backend(make_backend, [case])


@settings(max_examples=25, deadline=None)
@given(batches(), st.sampled_from([1, 3]), st.integers(0, 99))
def test_flat_and_by_levels_it_agrees_with_the_reference(
    batch: Batch, group_size: int, seed: int
) -> None:
    outs = []
    num_heads = 2 * group_size
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(batch.metadata.num_tokens, num_heads + 4, 64, generator=generator)
    q, k, v = torch.split(rows.half(), [num_heads, 2, 2], dim=1)
    for make_backend in (make_flat, make_cascade, make_reference):
        layer = batch.draw_layer(num_kv_heads=2, head_dim=64, dtype=torch.float16, seed=seed)
        backend = make_backend([layer], num_heads)
        backend.plan(batch.metadata)
        outs.append(backend.run(0, q, k, v).float())
    flat, by_levels, reference = outs

    assert bool(reference.isfinite().all())
    torch.testing.assert_close(flat, reference, rtol=4e-3, atol=4e-3)
    torch.testing.assert_close(by_levels, reference, rtol=4e-3, atol=4e-3)


def make_reference(layers: Sequence[LayerKV], num_qo_heads: int) -> ReferenceAttention:
    """Return the oracle, over the same KV in float32."""
    wide = [LayerKV(k=layer.k.float(), v=layer.v.float()) for layer in layers]
    return ReferenceAttention(wide, num_qo_heads=num_qo_heads)


def make_layer(dtype: torch.dtype = torch.float16, *, head_dim: int = 64) -> LayerKV:
    shape = (40, 4, 2, head_dim)
    return LayerKV(k=torch.zeros(shape, dtype=dtype), v=torch.zeros(shape, dtype=dtype))


def decodes(num_reqs: int = 2, *, start: int = 8) -> AttentionMetadata:
    """Return decodes of requests that share two blocks, each with one of its own."""
    return build_metadata(
        qo_lens=[1] * num_reqs,
        starts=[start] * num_reqs,
        tables=[pack_ids([1, 2, 3 + i]) for i in range(num_reqs)],
        block_size=4,
    )


def prefill() -> AttentionMetadata:
    return build_metadata(qo_lens=[3], starts=[0], tables=[pack_ids([9])], block_size=4)


def run(backend: AttentionBackend, num_rows: int, *, num_layers: int = 1) -> None:
    for layer_id in range(num_layers):
        backend.run(layer_id, *(torch.randn(num_rows, n, 64).half() for n in (4, 2, 2)))


def test_each_kind_of_batch_has_its_kernels_planned_once_and_run_once_a_layer() -> None:
    package = StandInPackage()
    backend = make_cascade([make_layer(), make_layer()], 4, package=package)
    for metadata in (decodes(1), prefill(), decodes(3)):
        backend.plan(metadata)
        run(backend, metadata.num_tokens, num_layers=2)

    by_levels = [*["prefill.run"] * 2, "merge_state"]
    assert [name for name in package.names() if "__init__" not in name] == [
        "merge_state",  # when it is built
        *["decode.plan", "decode.run", "decode.run"],
        *["prefill.plan", "prefill.run", "prefill.run"],
        *["prefill.plan", "prefill.plan", *by_levels, *by_levels],
    ]


@pytest.mark.parametrize("cascade", [EAGER, FLAT])
def test_nothing_is_built_or_first_used_while_batches_run(cascade: CascadeConfig) -> None:
    """What is compiled, loaded or allocated on first use would stand still in front of users."""
    package = StandInPackage()
    backend = make([make_layer()], 4, FlashInferOptions(cascade=cascade), package)
    built = package.names()
    for metadata in (decodes(3), prefill(), decodes(1), decodes(3)):
        backend.plan(metadata)
        run(backend, metadata.num_tokens)

    later = package.names()[len(built) :]
    assert not [name for name in later if "__init__" in name]
    assert set(later) & {"merge_state"} <= set(built)


def test_only_levels_ask_for_the_log_sum_exp_and_only_the_last_is_causal() -> None:
    package = StandInPackage()
    backend = make_cascade([make_layer()], 4, package=package)
    for metadata in (decodes(3), prefill()):
        backend.plan(metadata)
        run(backend, metadata.num_tokens)

    plans = [call.kwargs["causal"] for call in package.calls if call.name == "prefill.plan"]
    runs = [call.kwargs["return_lse"] for call in package.calls if call.name == "prefill.run"]
    assert plans == [False, True, True]
    assert runs == [True, True, False]


@pytest.mark.parametrize("kind", ["decode", "prefill", "levels"])
def test_no_wrapper_is_planned_twice_in_a_row(kind: str) -> None:
    package = StandInPackage()
    backend = make_cascade([make_layer()], 4, package=package)
    metadata = {"decode": decodes(1), "prefill": prefill(), "levels": decodes(3)}[kind]
    planned = []
    for _ in range(6):
        package.calls.clear()
        backend.plan(metadata)
        planned.append({id(call.of) for call in package.calls if call.name.endswith(".plan")})

    for before, now in pairwise(planned):
        assert now
        assert not before & now
    assert planned[0] == planned[2] == planned[4], "two are enough"


def test_a_plan_made_while_the_one_before_still_runs_changes_nothing_of_it() -> None:
    layer = make_layer()
    backend = make_flat([layer], 4)
    backend.plan(decodes(2))
    running, slots = backend._planned[0], backend._slots
    q = torch.randn(2, 4, 64).half()
    layer.k.normal_()
    layer.v.normal_()
    before = backend._pool.attend(0, running, q)

    backend.plan(decodes(5, start=9))

    assert torch.equal(backend._pool.attend(0, running, q), before)
    assert slots.tolist() == [12, 16]


@pytest.mark.parametrize("metadata", [decodes(1), prefill(), decodes(3)])
def test_everything_is_made_where_the_pool_is_but_what_the_planner_reads(
    metadata: AttentionMetadata,
) -> None:
    """On a device without data, which torch refuses to mix with the host's."""
    layer = LayerKV(k=make_layer().k.to("meta"), v=make_layer().v.to("meta"))
    backend = make_cascade([layer], 4)
    backend.plan(metadata)
    rows = (torch.empty(metadata.num_tokens, n, 64, device="meta") for n in (4, 2, 2))

    assert backend.run(0, *rows).device.type == "meta"
    backend.for_graph(1).plan(decodes(1))


def test_a_graphs_plan_waits_for_the_copy_of_the_one_before() -> None:
    package = StandInPackage()
    graph = make_flat([make_layer()], 4, package=package).for_graph(2)
    package.calls.clear()
    for _ in range(2):
        graph.plan(decodes(2))
        run(graph, 2)

    once = ["event.synchronize", "decode.plan", "event.record", "decode.run"]
    assert package.names() == once * 2
    assert len({id(call.of) for call in package.calls if "event" in call.name}) == 1


def test_a_graphs_buffers_never_move() -> None:
    package = StandInPackage()
    graph = make_flat([make_layer()], 4, package=package).for_graph(2)
    graph.plan(decodes(2))
    addresses = [buffer.data_ptr() for buffer in graph_buffers(package)]
    slots = graph._slots.data_ptr()

    graph.plan(decodes(2, start=10))

    assert [buffer.data_ptr() for buffer in graph_buffers(package)] == addresses
    assert graph._slots.data_ptr() == slots
    assert graph._slots.tolist() == [14, 18]


def graph_buffers(package: StandInPackage) -> list[Tensor]:
    [call] = [call for call in package.calls if call.kwargs.get("use_cuda_graph")]
    return [value for name, value in call.kwargs.items() if name.endswith("_buffer")]


def test_smaller_buckets_share_the_memory_of_the_largest() -> None:
    package = StandInPackage()
    backend = make_flat([make_layer()], 4, package=package)
    for bucket in (512, 8, 1):
        backend.for_graph(bucket, max_blocks_per_req=3)

    made = [call for call in package.calls if call.kwargs.get("use_cuda_graph")]
    indices = [call.kwargs["paged_kv_indices_buffer"] for call in made]
    assert [len(buffer) for buffer in indices] == [1536, 24, 3]
    assert len({buffer.data_ptr() for buffer in indices}) == 1
    assert len({call.args[0].data_ptr() for call in made}) == 1
    assert len(made[0].args[0]) > len(backend._workspace)


@pytest.mark.parametrize(("bucket", "metadata"), [(4, decodes(2)), (1, decodes(2))])
def test_a_graph_refuses_a_batch_that_is_not_its_bucket(
    bucket: int, metadata: AttentionMetadata
) -> None:
    graph = make_flat([make_layer()], 4).for_graph(bucket)

    with pytest.raises(InvariantError, match=f"2 requests in a graph of {bucket}"):
        graph.plan(metadata)


def test_run_without_a_plan_is_refused() -> None:
    backend = make_flat([make_layer()], 4)

    for unplanned in (backend, backend.for_graph(1)):
        with pytest.raises(InvariantError, match="planned for 0 tokens, not 1"):
            run(unplanned, 1)


def test_an_empty_batch_never_reaches_the_planner() -> None:
    package = StandInPackage()
    backend = make_flat([make_layer()], 4, package=package)
    ints, longs = torch.zeros(0, dtype=torch.int32), torch.zeros(0, dtype=torch.int64)
    zero = torch.zeros(1, dtype=torch.int32)
    empty = replace(
        decodes(1),
        qo_indptr=zero,
        kv_indptr=zero,
        kv_indices=ints,
        kv_last_page_len=ints,
        kv_lens=ints,
        slot_mapping=longs,
        positions=longs,
    )

    with pytest.raises(InvariantError, match="an empty batch"):
        backend.plan(empty)
    assert "prefill.plan" not in package.names()


def test_levels_that_a_batch_brings_are_used_where_there_may_be_as_many() -> None:
    metadata = decodes(3)
    found = find_levels(metadata, EAGER)
    told = replace(metadata, levels=found)
    never_found = FlashInferOptions(cascade=CascadeConfig(min_shared_tokens=2**40))
    backend = make([make_layer()], 4, never_found)

    assert len(found) == 2
    assert backend.levels_of(metadata) == ()
    assert backend.levels_of(told) == found
    assert make_flat([make_layer()], 4).levels_of(told) == ()


def test_more_heads_than_the_merge_takes_are_attended_to_flat() -> None:
    layer = make_layer()
    backend = make([layer], 130, FlashInferOptions(cascade=EAGER))
    metadata = decodes(3)
    levels = find_levels(metadata, EAGER)

    assert levels
    assert backend.levels_of(metadata) == ()
    assert backend.levels_of(replace(metadata, levels=levels)) == ()


@pytest.mark.parametrize("kind", ["decode", "prefill", "levels", "graph"])
def test_the_scale_multiplies_the_scores(kind: str) -> None:
    """With a scale of 0 a row is the mean of the values that it sees."""
    layer = make_layer()
    layer.v.normal_()
    eager = FlashInferAttention(
        [layer],
        num_qo_heads=4,
        scale=0.0,
        options=FlashInferOptions(cascade=EAGER),
        kernels=StandInPackage().kernels(),
    )
    backend: AttentionBackend = eager.for_graph(3) if kind == "graph" else eager
    metadata = {"decode": decodes(1), "prefill": prefill()}.get(kind, decodes(3))
    backend.plan(metadata)
    q, k, v = (torch.randn(metadata.num_tokens, n, 64).half() for n in (4, 2, 2))

    last = backend.run(0, q, k, v)[-1]

    blocks = metadata.kv_indices[int(metadata.kv_indptr[-2]) :].long()
    seen = layer.v[blocks].flatten(0, 1)[: int(metadata.kv_lens[-1])].float()
    mean = seen.mean(dim=0).repeat_interleave(2, dim=0)
    torch.testing.assert_close(last.float(), mean, rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("make_batch", [decodes, prefill])
def test_eight_bit_kv_is_scaled_on_its_way_in_and_out(dtype: torch.dtype, make_batch: Any) -> None:
    metadata = make_batch()
    layer, scale = make_layer(dtype), KVScale(k=0.5, v=4.0)
    options = FlashInferOptions(kv_scales=[scale], cascade=EAGER)
    q, k, v = (torch.randn(metadata.num_tokens, n, 64).bfloat16() for n in (4, 2, 2))

    backend = make([layer], 4, options)
    backend.plan(metadata)
    out = backend.run(0, q, k, v)

    wide = LayerKV(k=layer.k.float() * scale.k, v=layer.v.float() * scale.v)
    written = wide.k.flatten(0, 1)[metadata.slot_mapping]
    step = 2 * torch.finfo(dtype).eps
    torch.testing.assert_close(written, k.float(), rtol=step, atol=step)
    reference = ReferenceAttention([wide], num_qo_heads=4)
    reference.plan(metadata)
    rounded = (pool.flatten(0, 1)[metadata.slot_mapping] for pool in (wide.k, wide.v))
    expected = reference.run(0, q.float(), *rounded)
    torch.testing.assert_close(out.float(), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    ("dtype", "largest"), [(torch.float8_e4m3fn, 448.0), (torch.float8_e5m2, 57344.0)]
)
def test_what_eight_bits_cannot_hold_is_clamped_and_nan_stays_nan(
    dtype: torch.dtype, largest: float
) -> None:
    layer = make_layer(dtype)
    backend = make([layer], 4, FlashInferOptions())
    backend.plan(decodes(1))
    k = torch.full((1, 2, 64), 1e6)
    v = torch.full((1, 2, 64), torch.nan)

    backend.run(0, torch.zeros(1, 4, 64), k, v)

    assert bool((layer.k.float()[3, 0] == largest).all())
    assert bool(layer.v.float()[3, 0].isnan().all())


def test_queries_are_computed_in_the_kernels_precision_and_come_back_in_their_own() -> None:
    package = StandInPackage()
    backend = make_flat([make_layer(torch.bfloat16)], 4, package=package)
    backend.plan(decodes(1))

    out = backend.run(0, *(torch.randn(1, n, 64) for n in (4, 2, 2)))

    assert out.dtype == torch.float32
    assert package.calls[-1].args[0].dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("layers", "options", "message"),
    [
        ([], FlashInferOptions(), "at least one layer"),
        ([make_layer(head_dim=96)], FlashInferOptions(), "head_dim 64, 128 and 256, not 96"),
        ([make_layer(torch.float32)], FlashInferOptions(), "not float32"),
        ([make_layer(), make_layer(torch.bfloat16)], FlashInferOptions(), "one dtype and device"),
        (
            [LayerKV(k=make_layer().k, v=make_layer().v[:20])],
            FlashInferOptions(),
            "one shape and stride",
        ),
        ([make_layer()], FlashInferOptions(kv_scales=[KVScale()] * 2), "got 2 for 1 layers"),
    ],
)
def test_a_pool_that_no_kernel_reads_is_refused(
    layers: list[LayerKV], options: FlashInferOptions, message: str
) -> None:
    with pytest.raises(BackendUnavailableError, match=message):
        make(layers, 4, options)


def test_without_a_cuda_device_it_says_so_in_one_sentence() -> None:
    with pytest.raises(BackendUnavailableError) as caught:
        load_kernels(torch.device("cpu"))

    assert "flashinfer runs on a CUDA device only" in str(caught.value)
    assert "use --attention-backend cpu" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_the_package_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flashinfer", None)

    with pytest.raises(BackendUnavailableError, match=r"install radixserve\[cuda\]"):
        load_kernels(torch.device("cuda"))


@pytest.mark.parametrize(("before", "after"), [(None, "1"), ("0", "0")])
def test_norms_that_can_be_built_before_are_asked_for_unless_somebody_chose(
    before: str | None, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = StandInPackage()
    monkeypatch.setitem(sys.modules, "flashinfer", package)
    monkeypatch.setenv("FLASHINFER_USE_CUDA_NORM", before or "")
    if before is None:
        monkeypatch.delenv("FLASHINFER_USE_CUDA_NORM")

    assert load_package(torch.device("cuda")) is package
    assert os.environ["FLASHINFER_USE_CUDA_NORM"] == after
