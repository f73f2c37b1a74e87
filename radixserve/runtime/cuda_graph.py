"""Decodes replayed from CUDA graphs: what hundreds of kernel launches cost is paid once.

A graph repeats the very kernels that were captured, on the very addresses. So there is one for each
of a few batch sizes, the buckets, and a batch is padded to the next of them:

    5 decodes  ->  bucket 8:  rows 0-4 are theirs; rows 5-7 each are one token in the dummy block

A padded row is a request of length 1, never of length 0, which some kernels leave unwritten. What
it computes is cut off; the block that it writes to belongs to nobody.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import torch

from radixserve.attention.build import build_metadata
from radixserve.attention.flashinfer_args import pad_decode
from radixserve.attention.levels import saved_tokens
from radixserve.types import pack_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from radixserve.attention.backend import AttentionBackend
    from radixserve.attention.metadata import AttentionMetadata, CascadeLevel
    from radixserve.models.decoder import Decoder
    from radixserve.runtime.batch import BatchTensors
    from radixserve.runtime.forward import Forward
    from radixserve.runtime.kv_cache import KVCache

BUCKET_STEP = 8
"""Batch sizes from here on are padded to multiples of it, so that little is computed for nobody."""

WARM_UP_RUNS = 2
"""Runs before a capture: what is compiled, loaded or tuned on first use must not be in it."""


class GraphAttention(Protocol):
    """An attention backend that has a twin for each graph."""

    def for_graph(self, bucket: int, *, max_blocks_per_req: int | None = None) -> AttentionBackend:
        """Return the attention of batches of exactly `bucket` decodes, over the same pool."""
        ...

    def levels_of(self, metadata: AttentionMetadata) -> tuple[CascadeLevel, ...]:
        """Return the levels by which a batch is attended to; none where that is flat."""
        ...


class GraphCapture(Protocol):
    """Turns an action into one that can be repeated at next to no cost."""

    def __call__(self, action: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Run `action`, and return what repeats it.

        Args:
            action: Reads and writes the same tensors whenever it runs; returns one of its own.
        Returns: an action with the same effects, whose result is good until the next one.
        """
        ...


def decode_buckets(max_num_seqs: int) -> tuple[int, ...]:
    """Return the batch sizes that get a graph, ascending: 1, 2, 4, 8, 16, 24, ..., max_num_seqs."""
    small = [size for size in (1, 2, 4) if size < max_num_seqs]
    return (*small, *range(BUCKET_STEP, max_num_seqs, BUCKET_STEP), max_num_seqs)


@dataclass(frozen=True, slots=True, eq=False)
class _Graph:
    bucket: int
    attention: AttentionBackend
    replay: Callable[[], Tensor]


class GraphedForward:
    """Replays pure decodes; runs every other batch as it comes.

    Nothing is replayed before `capture` has been called.

    Args:
        eager: For prefills, for batches beyond the largest bucket, and for those whose rows share
            so much that they are attended to by levels, which differ from batch to batch.
        model: The decoder that `eager` runs.
        attention: The one that `eager` runs on.
        buckets: Batch sizes, ascending.
        pool: Where the KV and the dummy block are.
        max_blocks_per_req: Longest block table; as long as the pool when None.

    Attributes:
        min_saved_tokens: Reads of a token's KV that levels must spare before a batch is run by them
            and not replayed. A graph is flat: by levels every kernel is launched one by one.
    """

    def __init__(
        self,
        eager: Forward,
        model: Decoder,
        attention: GraphAttention,
        *,
        buckets: Sequence[int],
        pool: KVCache,
        max_blocks_per_req: int | None = None,
    ) -> None:
        self._eager = eager
        self._model = model
        self._attention = attention
        self._buckets = tuple(buckets)
        self._block_size = pool.block_size
        self._dummy_block = pool.dummy_block
        self._max_blocks_per_req = max_blocks_per_req
        self._token_ids = torch.zeros(self._buckets[-1], dtype=torch.int64, device=pool.device)
        self._positions = torch.zeros_like(self._token_ids)
        self._graphs: dict[int, _Graph] = {}
        self.min_saved_tokens = 0

    def capture(self, capture: GraphCapture) -> None:
        """Capture a graph for each bucket, the largest first: the others fit into its memory.

        Mutates: the dummy block.
        """
        with torch.inference_mode():
            for bucket in reversed(self._buckets):
                self._graphs[bucket] = self._captured(bucket, capture)

    def __call__(self, batch: BatchTensors) -> Tensor:
        """Return the last hidden state of every row; see `Forward`."""
        graph = self._graph_for(batch.metadata)
        if graph is None:
            return self._eager(batch)
        levels = self._attention.levels_of(batch.metadata)
        if levels and saved_tokens(levels, self._block_size) >= self.min_saved_tokens:
            return self._eager(replace(batch, metadata=replace(batch.metadata, levels=levels)))
        return self._replay(graph, batch)

    def _graph_for(self, metadata: AttentionMetadata) -> _Graph | None:
        rows = metadata.num_tokens
        if rows != metadata.num_reqs or rows > self._buckets[-1]:
            return None
        return self._graphs.get(self._buckets[bisect_left(self._buckets, rows)])

    def _replay(self, graph: _Graph, batch: BatchTensors) -> Tensor:
        rows = batch.metadata.num_tokens
        # What the padded rows hold is left from another batch: any token, any position will do.
        self._token_ids[:rows].copy_(batch.token_ids, non_blocking=True)
        self._positions[:rows].copy_(batch.positions, non_blocking=True)
        graph.attention.plan(pad_decode(batch.metadata, graph.bucket, self._dummy_block))
        return graph.replay()[:rows]

    def _captured(self, bucket: int, capture: GraphCapture) -> _Graph:
        attention = self._attention.for_graph(bucket, max_blocks_per_req=self._max_blocks_per_req)
        attention.plan(
            build_metadata(
                qo_lens=[1] * bucket,
                starts=[0] * bucket,
                tables=[pack_ids([self._dummy_block])] * bucket,
                block_size=self._block_size,
            )
        )
        token_ids, positions = self._token_ids[:bucket], self._positions[:bucket]
        replay = capture(lambda: self._model(token_ids, positions, attention))
        return _Graph(bucket, attention, replay)


class CudaGraphCapture:
    """Captures into CUDA graphs that take their memory from one pool: only one is ever replayed
    at a time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        # One for all: libraries keep a workspace for every stream that they were called on.
        self._side = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def __call__(self, action: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Capture an action; see `GraphCapture`."""
        self._warm_up(action)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._side):
            result = action()

        def replay() -> Tensor:
            graph.replay()
            return result

        return replay

    def _warm_up(self, action: Callable[[], Tensor]) -> None:
        """Run an action a few times beside the current stream, as a capture asks for."""
        self._side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._side):
            for _ in range(WARM_UP_RUNS):
                action()
        torch.cuda.current_stream().wait_stream(self._side)
