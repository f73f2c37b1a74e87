"""Every backend, held to the same cases."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve import kernels
from radixserve.attention.build import build_metadata
from radixserve.attention.cpu import CpuAttention
from radixserve.attention.layer_kv import LayerKV
from radixserve.attention.levels import find_levels
from radixserve.attention.reference import ReferenceAttention
from radixserve.config import CascadeConfig
from radixserve.errors import BackendUnavailableError, InvariantError
from radixserve.types import pack_ids
from tests.attention.conformance import (
    CASES,
    LAYOUTS,
    Case,
    MakeBackend,
    check_attention_backend,
)
from tests.attention.trees import Levelled

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from radixserve.attention.backend import AttentionBackend


def make_reference(layers: Sequence[LayerKV], num_qo_heads: int) -> AttentionBackend:
    return ReferenceAttention(layers, num_qo_heads=num_qo_heads)


def make_levelled_reference(layers: Sequence[LayerKV], num_qo_heads: int) -> AttentionBackend:
    gate = CascadeConfig(min_sharers=2, min_shared_tokens=1)
    return Levelled(make_reference(layers, num_qo_heads), gate)


def make_cpu(layers: Sequence[LayerKV], num_qo_heads: int) -> AttentionBackend:
    return CpuAttention(layers, num_qo_heads=num_qo_heads)


BACKENDS = [make_reference, make_cpu] if kernels.is_available() else [make_reference]
every_backend = pytest.mark.parametrize("make", BACKENDS)


@pytest.fixture(params=kernels.variants() if kernels.is_available() else [])
def variant(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each instruction set in turn."""
    before = kernels.variant()
    kernels.set_variant(request.param)
    yield request.param
    kernels.set_variant(before)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_reference_agrees_with_dense_attention(case: Case) -> None:
    check_attention_backend(make_reference, [case])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.usefixtures("variant")
def test_the_kernels_agree_with_dense_attention(case: Case) -> None:
    check_attention_backend(make_cpu, [case])


@st.composite
def cases(draw: st.DrawFn) -> Case:
    lens = draw(st.lists(st.tuples(st.integers(1, 20), st.integers(0, 40)), min_size=1, max_size=6))
    block_size = draw(st.sampled_from([1, 2, 3, 16, 32]))
    shared_blocks = draw(st.integers(0, 2))
    return Case(
        name="drawn",
        qo_lens=tuple(qo_len for qo_len, _ in lens),
        starts=tuple(start + shared_blocks * block_size for _, start in lens),
        block_size=block_size,
        num_kv_heads=draw(st.integers(1, 3)),
        group_size=draw(st.integers(1, 4)),
        head_dim=draw(st.sampled_from([8, 64])),
        kv_dtype=draw(st.sampled_from([torch.float32, torch.int8])),
        layout=draw(st.sampled_from(LAYOUTS)),
        shared_blocks=shared_blocks,
        is_scattered=draw(st.booleans()),
        seed=draw(st.integers(0, 1000)),
    )


@every_backend
@settings(max_examples=25, deadline=None)
@given(cases())
def test_backends_agree_with_dense_attention_on_drawn_batches(
    make: MakeBackend, case: Case
) -> None:
    check_attention_backend(make, [case])


@settings(max_examples=15, deadline=None)
@given(cases())
def test_reference_by_levels_agrees_with_dense_attention_on_drawn_batches(case: Case) -> None:
    check_attention_backend(make_levelled_reference, [case])


def make_layer(*, num_kv_heads: int = 2) -> LayerKV:
    shape = (4, 4, num_kv_heads, 8)
    return LayerKV(k=torch.zeros(shape), v=torch.zeros(shape))


@pytest.mark.parametrize("backend_class", [ReferenceAttention, CpuAttention][: len(BACKENDS)])
def test_the_scale_multiplies_the_scores(
    backend_class: type[ReferenceAttention | CpuAttention],
) -> None:
    backend = backend_class([make_layer(num_kv_heads=1)], num_qo_heads=1, scale=0.0)
    backend.plan(build_metadata(qo_lens=[2], starts=[0], tables=[pack_ids([1])], block_size=4))
    q = k = torch.randn(2, 1, 8)
    v = torch.stack([torch.zeros(1, 8), torch.ones(1, 8)])

    out = backend.run(0, q, k, v)

    torch.testing.assert_close(out[1], torch.full((1, 8), 0.5))


@every_backend
def test_a_plan_made_in_inference_mode_runs_outside_of_it(make: MakeBackend) -> None:
    backend = make([make_layer(num_kv_heads=1)], 1)
    with torch.inference_mode():
        backend.plan(build_metadata(qo_lens=[1], starts=[0], tables=[pack_ids([1])], block_size=4))
    v = torch.randn(1, 1, 8)

    assert torch.equal(backend.run(0, torch.randn(1, 1, 8), torch.randn(1, 1, 8), v), v)


def test_the_reference_runs_where_the_pool_is() -> None:
    """A device without data, which torch refuses to mix with the host's."""
    layer = LayerKV(*(torch.empty(4, 4, 2, 8, device="meta") for _ in range(2)))
    backend = ReferenceAttention([layer], num_qo_heads=4)
    tables = [pack_ids([1, 2]), pack_ids([1, 3])]
    flat = build_metadata(qo_lens=[2, 1], starts=[4, 5], tables=tables, block_size=4)
    levels = find_levels(flat, CascadeConfig(min_sharers=2, min_shared_tokens=1))
    assert levels
    for metadata in (flat, replace(flat, levels=levels)):
        backend.plan(metadata)
        rows = (torch.empty(3, heads, 8, device="meta") for heads in (4, 2, 2))
        assert backend.run(0, *rows).device.type == "meta"


@every_backend
def test_run_without_a_plan_is_refused(make: MakeBackend) -> None:
    backend = make([make_layer()], 2)
    rows = torch.zeros(1, 2, 8)
    with pytest.raises(InvariantError, match="planned for 0 tokens, not 1"):
        backend.run(0, rows, rows, rows)


@every_backend
def test_run_with_other_rows_than_planned_is_refused(make: MakeBackend) -> None:
    backend = make([make_layer()], 2)
    backend.plan(build_metadata(qo_lens=[2], starts=[0], tables=[pack_ids([1])], block_size=4))
    rows = torch.zeros(3, 2, 8)
    with pytest.raises(InvariantError, match="planned for 2 tokens, not 3"):
        backend.run(0, rows, rows, rows)


@every_backend
def test_a_pool_without_layers_is_refused(make: MakeBackend) -> None:
    with pytest.raises(BackendUnavailableError, match="at least one layer"):
        make([], 2)


@every_backend
def test_query_heads_that_no_whole_group_makes_are_refused(make: MakeBackend) -> None:
    with pytest.raises(BackendUnavailableError, match="3 query heads over 2 KV heads"):
        make([make_layer()], 3)
