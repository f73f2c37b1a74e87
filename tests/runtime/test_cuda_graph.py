"""Decodes through captured graphs give what the model gives: only the device is left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from radixserve.attention.metadata import CascadeLevel
from radixserve.attention.reference import ReferenceAttention
from radixserve.core.plan import SamplingState, ScheduledReq, StepPlan
from radixserve.errors import InvariantError
from radixserve.runtime.batch import BatchTensors, build_batch
from radixserve.runtime.cuda_graph import GraphedForward, decode_buckets
from radixserve.runtime.forward import EagerForward
from radixserve.runtime.kv_cache import KVCache
from radixserve.runtime.model_runner import ModelRunner
from radixserve.runtime.sampler import Sampler
from radixserve.types import ReqId, SamplingParams, TokenId, pack_ids
from tests.kit.plain_capture import PlainCapture

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from radixserve.attention.layer_kv import LayerKV
    from radixserve.attention.metadata import AttentionMetadata
    from radixserve.models.loader import LoadedModel

CPU = torch.device("cpu")
BLOCK_SIZE, NUM_BLOCKS = 4, 40
GREEDY = SamplingParams(temperature=0.0)


class GraphedReference(ReferenceAttention):
    """Plain attention with a twin for each bucket, that goes by levels when it is told to."""

    levels: tuple[CascadeLevel, ...] = ()

    def __init__(self, layers: Sequence[LayerKV], *, num_qo_heads: int) -> None:
        super().__init__(layers, num_qo_heads=num_qo_heads)
        self._parts = (layers, num_qo_heads)

    def for_graph(
        self, bucket: int, *, max_blocks_per_req: int | None = None
    ) -> ReferenceAttention:
        layers, num_qo_heads = self._parts
        return ReferenceAttention(layers, num_qo_heads=num_qo_heads)

    def levels_of(self, metadata: AttentionMetadata) -> tuple[CascadeLevel, ...]:
        return self.levels


class Machine:
    """A tiny model over a pool with a dummy block, with and without graphs."""

    def __init__(self, loaded: LoadedModel, *, max_num_seqs: int = 9) -> None:
        spec = loaded.spec
        self.pool = KVCache.allocate(
            spec, NUM_BLOCKS, BLOCK_SIZE, torch.float32, device=CPU, num_dummies=1
        )

        self.attention = GraphedReference(self.pool.layers, num_qo_heads=spec.num_qo_heads)
        self.eager = CountedForward(EagerForward(loaded.model, self.attention))
        self.graphed = GraphedForward(
            self.eager,
            loaded.model,
            self.attention,
            buckets=decode_buckets(max_num_seqs),
            pool=self.pool,
        )
        self.capture = PlainCapture()
        self.runner = ModelRunner(
            loaded.model,
            self.pool,
            self.attention,
            Sampler(spec.vocab_size),
            forward=self.graphed,
        )


class CountedForward:
    """An eager forward pass that counts its batches."""

    def __init__(self, inner: EagerForward) -> None:
        self.inner = inner
        self.num_batches = 0
        self.last: AttentionMetadata | None = None

    def __call__(self, batch: BatchTensors) -> Tensor:
        self.num_batches += 1
        self.last = batch.metadata
        return self.inner(batch)


def prompt_of(row: int) -> list[TokenId]:
    return [(31 * row * row + 7 * row + 5 * place) % 512 for place in range(3 + row % 5)]


def share(row: int, tokens: list[TokenId], start: int) -> ScheduledReq:
    """A request's part of a step; request `row` has blocks of its own for 12 tokens."""
    table = pack_ids([3 * row + 2, 3 * row, 3 * row + 1])
    return ScheduledReq(ReqId(f"r{row}"), pack_ids(tokens), start, table, SamplingState(GREEDY, 0))


def prefill(rows: range) -> StepPlan:
    return StepPlan(0, tuple(share(row, prompt_of(row), 0) for row in rows))


def decode(rows: range, tokens: tuple[TokenId | None, ...], place: int) -> StepPlan:
    shares = []
    for row, token in zip(rows, tokens, strict=True):
        assert token is not None
        shares.append(share(row, [token], len(prompt_of(row)) + place))
    return StepPlan(1 + place, tuple(shares))


@pytest.mark.parametrize(
    ("most", "buckets"),
    [
        (1, (1,)),
        (2, (1, 2)),
        (3, (1, 2, 3)),
        (8, (1, 2, 4, 8)),
        (9, (1, 2, 4, 8, 9)),
        (32, (1, 2, 4, 8, 16, 24, 32)),
    ],
)
def test_there_is_a_bucket_for_every_batch_and_none_beyond(
    most: int, buckets: tuple[int, ...]
) -> None:
    assert decode_buckets(most) == buckets


@pytest.mark.parametrize("num_reqs", [1, 2, 3, 5, 8, 9])
def test_a_decode_from_a_graph_is_the_decode_of_the_model(
    tiny_model: LoadedModel, num_reqs: int
) -> None:
    machine, plain = Machine(tiny_model), Machine(tiny_model)
    machine.graphed.capture(machine.capture)
    rows = range(num_reqs)
    tokens = machine.runner.execute(prefill(rows)).next_tokens
    assert plain.runner.execute(prefill(rows)).next_tokens == tokens

    for place in range(4):
        plan = decode(rows, tokens, place)
        batch = build_batch(plan, BLOCK_SIZE)
        with torch.inference_mode():
            torch.testing.assert_close(machine.graphed(batch), plain.eager(batch))
        tokens = machine.runner.execute(plan).next_tokens
        assert tokens == plain.runner.execute(plan).next_tokens

    assert machine.capture.num_replays == 8
    for ours, theirs in zip(machine.pool.layers, plain.pool.layers, strict=True):
        torch.testing.assert_close(ours.k[:NUM_BLOCKS], theirs.k[:NUM_BLOCKS])
        torch.testing.assert_close(ours.v[:NUM_BLOCKS], theirs.v[:NUM_BLOCKS])


def test_padded_rows_write_to_the_dummy_block_alone(tiny_model: LoadedModel) -> None:
    machine = Machine(tiny_model)
    machine.graphed.capture(machine.capture)
    tokens = machine.runner.execute(prefill(range(5))).next_tokens
    own = [block for row in range(5) for block in (3 * row, 3 * row + 1, 3 * row + 2)]
    others = [block for block in range(NUM_BLOCKS) if block not in own]
    for layer in machine.pool.layers:
        layer.k[NUM_BLOCKS] = 0.0

    machine.runner.execute(decode(range(5), tokens, 0))

    for layer in machine.pool.layers:
        assert layer.k[others].eq(0).all()
        assert layer.k[NUM_BLOCKS, 0].ne(0).any()
        assert layer.k[NUM_BLOCKS, 1:].eq(0).all()


def test_what_another_batch_left_in_the_padded_rows_changes_nothing(
    tiny_model: LoadedModel,
) -> None:
    machine, plain = Machine(tiny_model), Machine(tiny_model)
    machine.graphed.capture(machine.capture)
    tokens = machine.runner.execute(prefill(range(8))).next_tokens
    plain.runner.execute(prefill(range(8)))

    machine.runner.execute(decode(range(8), tokens, 0))
    plain.runner.execute(decode(range(8), tokens, 0))
    few = decode(range(5), tokens[:5], 1)

    assert machine.runner.execute(few) == plain.runner.execute(few)


def test_the_largest_bucket_is_captured_first(tiny_model: LoadedModel) -> None:
    machine = Machine(tiny_model)

    machine.graphed.capture(machine.capture)

    assert machine.capture.shapes == [(size, 64) for size in (9, 8, 4, 2, 1)]


def test_captures_write_to_no_block_that_may_be_owned(tiny_model: LoadedModel) -> None:
    machine = Machine(tiny_model)

    machine.graphed.capture(machine.capture)

    assert all(layer.v[:NUM_BLOCKS].eq(0).all() for layer in machine.pool.layers)


def test_prefills_mixed_batches_and_too_many_decodes_run_as_they_come(
    tiny_model: LoadedModel,
) -> None:
    machine = Machine(tiny_model, max_num_seqs=4)
    machine.graphed.capture(machine.capture)
    tokens = machine.runner.execute(prefill(range(5))).next_tokens
    mixed = StepPlan(1, (*decode(range(1), tokens[:1], 0).reqs, share(6, prompt_of(6), 0)))

    machine.runner.execute(mixed)
    machine.runner.execute(decode(range(5), tokens, 0))

    assert machine.eager.num_batches == 3
    assert machine.capture.num_replays == 0


def test_a_batch_whose_attention_goes_by_levels_runs_as_it_comes(tiny_model: LoadedModel) -> None:
    machine = Machine(tiny_model)
    machine.graphed.capture(machine.capture)
    tokens = machine.runner.execute(prefill(range(2))).next_tokens
    plan = decode(range(2), tokens, 0)
    meta = build_batch(plan, BLOCK_SIZE).metadata
    whole = CascadeLevel(meta.qo_indptr, meta.kv_indptr, meta.kv_indices, meta.kv_last_page_len)
    machine.attention.levels = (whole,)

    machine.runner.execute(plan)

    assert machine.capture.num_replays == 0
    assert machine.eager.last is not None
    assert machine.eager.last.levels == (whole,)


@pytest.mark.parametrize(("least", "is_replayed"), [(0, False), (8, False), (9, True)])
def test_levels_that_spare_too_little_are_left_for_the_graph(
    tiny_model: LoadedModel, least: int, *, is_replayed: bool
) -> None:
    """Three requests that share a block of four tokens: two reads of it are spared."""
    machine = Machine(tiny_model)
    assert BLOCK_SIZE == 4
    machine.graphed.capture(machine.capture)
    machine.graphed.min_saved_tokens = least
    tokens = machine.runner.execute(prefill(range(3))).next_tokens
    plan = decode(range(3), tokens, 0)
    meta = build_batch(plan, BLOCK_SIZE).metadata
    shared = CascadeLevel(
        *(torch.tensor(ints, dtype=torch.int32) for ints in ([0, 3], [0, 1], [7], [4]))
    )
    own = CascadeLevel(meta.qo_indptr, meta.kv_indptr, meta.kv_indices, meta.kv_last_page_len)
    machine.attention.levels = (shared, own)

    machine.runner.execute(plan)

    assert machine.capture.num_replays == is_replayed


def test_nothing_is_replayed_before_the_capture(tiny_model: LoadedModel) -> None:
    machine = Machine(tiny_model)
    tokens = machine.runner.execute(prefill(range(2))).next_tokens

    machine.runner.execute(decode(range(2), tokens, 0))

    assert machine.eager.num_batches == 2


def test_graphs_need_a_pool_with_a_dummy_block(tiny_model: LoadedModel) -> None:
    pool = KVCache.allocate(tiny_model.spec, 4, 4, torch.float32)
    attention = GraphedReference(pool.layers, num_qo_heads=tiny_model.spec.num_qo_heads)

    with pytest.raises(InvariantError, match="no dummy block"):
        GraphedForward(
            EagerForward(tiny_model.model, attention),
            tiny_model.model,
            attention,
            buckets=(1,),
            pool=pool,
        )
