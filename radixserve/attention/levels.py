"""Which requests of a batch read the same blocks: cascade levels out of the block tables.

Six requests in tree order, one letter a block; small letters are blocks of new tokens:

    A A A B B p        level 0    A A A    read once for requests 0-3; nothing for 4-5
    A A A B B q        level 1    B B      read once for 0-1; nothing for 2-5
    A A A r            level 2    p | q | r | C C s | D D D t | E u      everybody's own, causal
    A A A C C s
    D D D t
    E u

A level's group is read once for all its rows. What precedes each sharer's new tokens is seen by all
of its rows alike, so that a shared level needs no causal mask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from radixserve.attention.metadata import CascadeLevel
from radixserve.types import ID_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import TypeAlias

    from numpy.typing import NDArray

    from radixserve.attention.metadata import AttentionMetadata
    from radixserve.config import CascadeConfig

    Ints: TypeAlias = NDArray[np.int64]

MAX_CANDIDATES = 32
"""Groups that are weighed against one another; of more, those that save most. Bounds the host's
time: what is left out was worth the least."""


class _Group(NamedTuple):
    """Requests `first..last` (inclusive) whose leading `num_blocks` blocks are equal."""

    first: int
    last: int
    num_blocks: int

    @property
    def savings(self) -> int:
        """Reads of blocks that sharing all of it spares."""
        return (self.last - self.first) * self.num_blocks


class _Choice(NamedTuple):
    """Some nested groups, and the reads that they spare together."""

    savings: int = 0
    taken: tuple[tuple[int, int, _Group], ...] = ()
    """(level, blocks that the levels above it cover, group), outer ones first."""


def find_levels(metadata: AttentionMetadata, gate: CascadeConfig) -> tuple[CascadeLevel, ...]:
    """Return the levels that read what neighbouring requests share once; none if flat is better.

    Only neighbours are compared: requests in the tree's order show all that they share. A request
    that has no group at a level is part of a segment without blocks there, which attends to
    nothing.

    Args:
        metadata: A batch; its own `levels` are not looked at.
        gate: What a level must save.
    Complexity: O(requests + blocks of requests that may share), without a Python loop over blocks.
    """
    if gate.max_levels == 1:
        return ()
    min_blocks = -(-gate.min_shared_tokens // metadata.block_size)
    shared = _shared_blocks(metadata, min_blocks)
    groups = list(_groups(shared, gate.min_sharers))
    if len(groups) > MAX_CANDIDATES:
        best = set(sorted(groups, key=lambda group: -group.savings)[:MAX_CANDIDATES])
        groups = [group for group in groups if group in best]
    taken = _Chooser(groups, min_blocks).choose(gate.max_levels - 1)
    return _build(metadata, taken) if taken else ()


def saved_tokens(levels: Sequence[CascadeLevel], block_size: int) -> int:
    """Return how many reads of a token's KV in each layer the shared levels spare."""
    saved = 0
    for level in levels[:-1]:
        rows, blocks = np.diff(level.qo_indptr.numpy()), np.diff(level.kv_indptr.numpy())
        saved += int(((rows - 1) * blocks).sum())
    return saved * block_size


def _shared_blocks(metadata: AttentionMetadata, min_blocks: int) -> Ints:
    """Return how many leading blocks each request shares with the next one; 0 for too few.

    Only whole blocks count that precede the new tokens of both.
    """
    indptr = metadata.kv_indptr.numpy().astype(np.int64)
    indices = metadata.kv_indices.numpy()
    old_lens = metadata.kv_lens.numpy() - np.diff(metadata.qo_indptr.numpy())
    num_old = old_lens.astype(np.int64) // metadata.block_size
    bounds = np.minimum(num_old[:-1], num_old[1:])

    shared = np.zeros_like(bounds)
    pairs = np.flatnonzero(bounds >= min_blocks)
    for offset in (0, min_blocks - 1):  # two looks spare most pairs the comparison in full
        pairs = pairs[indices[indptr[pairs] + offset] == indices[indptr[pairs + 1] + offset]]
    packed = indices.tobytes()
    for pair in pairs.tolist():
        (mine, others), most = indptr[pair : pair + 2].tolist(), int(bounds[pair])
        num_equal = _num_equal(packed, mine, others, most)
        shared[pair] = num_equal if num_equal >= min_blocks else 0
    return shared


def _num_equal(packed: bytes, mine: int, others: int, most: int) -> int:
    """Return how many of `most` packed ids are equal from two places on."""
    a, b = (packed[place * ID_BYTES : (place + most) * ID_BYTES] for place in (mine, others))
    if a == b:
        return most
    return int(np.argmax(np.frombuffer(a, np.int32) != np.frombuffer(b, np.int32)))


def _groups(shared: Ints, min_sharers: int) -> Iterator[_Group]:
    """Yield every run of neighbours that share more than the runs around it, outer ones first.

    Complexity: O(requests): each is put on the stack once.
    """
    found: list[_Group] = []
    open_runs: list[tuple[int, int]] = []  # (first request, blocks), blocks ascending
    for request, num_blocks in enumerate([*shared.tolist(), 0]):
        first = request
        while open_runs and open_runs[-1][1] > num_blocks:
            first, depth = open_runs.pop()
            if request - first + 1 >= min_sharers:
                found.append(_Group(first, request, depth))
        if num_blocks and (not open_runs or open_runs[-1][1] < num_blocks):
            open_runs.append((first, num_blocks))
    yield from sorted(found, key=lambda group: (group.first, -group.last, group.num_blocks))


class _Chooser:
    """Chooses which of some nested groups become levels, so that they spare the most reads.

    Args:
        groups: Outer ones before those inside them.
        min_blocks: Fewest blocks that a level adds.
    """

    def __init__(self, groups: Sequence[_Group], min_blocks: int) -> None:
        self._min_blocks = min_blocks
        self._children: dict[_Group | None, list[_Group]] = {None: []}
        self._known: dict[tuple[_Group, int, int], _Choice] = {}
        path: list[_Group] = []
        for group in groups:
            while path and path[-1].last < group.first:
                path.pop()
            self._children[path[-1] if path else None].append(group)
            self._children[group] = []
            path.append(group)

    def choose(self, max_depth: int) -> tuple[tuple[int, int, _Group], ...]:
        """Return the best choice of at most `max_depth` groups one inside the other."""
        return self._best_of(self._children[None], 0, 0, max_depth).taken

    def _best_of(self, groups: Iterable[_Group], covered: int, level: int, left: int) -> _Choice:
        choices = [self._best(group, covered, level, left) for group in groups]
        return _Choice(
            sum(choice.savings for choice in choices),
            tuple(item for choice in choices for item in choice.taken),
        )

    def _best(self, group: _Group, covered: int, level: int, left: int) -> _Choice:
        if left == 0:
            return _Choice()
        key = (group, covered, left)
        if key not in self._known:
            self._known[key] = self._weigh(group, covered, level, left)
        return self._known[key]

    def _weigh(self, group: _Group, covered: int, level: int, left: int) -> _Choice:
        """Return the better of giving `group` a level and leaving it to those inside it."""
        inner = self._children[group]
        without = self._best_of(inner, covered, level, left)
        added = group.num_blocks - covered
        if added < self._min_blocks:
            return without
        deeper = self._best_of(inner, group.num_blocks, level + 1, left - 1)
        savings = (group.last - group.first) * added + deeper.savings
        if savings <= without.savings:
            return without
        return _Choice(savings, ((level, covered, group), *deeper.taken))


def _build(
    metadata: AttentionMetadata, taken: Sequence[tuple[int, int, _Group]]
) -> tuple[CascadeLevel, ...]:
    covered = np.zeros(metadata.num_reqs, dtype=np.int64)
    levels = []
    for depth in range(max(level for level, _, _ in taken) + 1):
        at_depth = [(covers, group) for level, covers, group in taken if level == depth]
        levels.append(_shared_level(metadata, at_depth))
        for _, group in at_depth:
            covered[group.first : group.last + 1] = group.num_blocks
    return (*levels, _private_level(metadata, covered))


def _shared_level(
    metadata: AttentionMetadata, groups: Sequence[tuple[int, _Group]]
) -> CascadeLevel:
    """Return a level of these groups, in the batch's order; what is between them has no blocks."""
    indptr, qo_indptr = metadata.kv_indptr.numpy(), metadata.qo_indptr.numpy()
    ends, counts, pieces = [0], [], []
    for covers, group in groups:
        if group.first > ends[-1]:
            ends.append(group.first)
            counts.append(0)
        begin = int(indptr[group.first])
        ends.append(group.last + 1)
        counts.append(group.num_blocks - covers)
        pieces.append(metadata.kv_indices.numpy()[begin + covers : begin + group.num_blocks])
    if ends[-1] < metadata.num_reqs:
        ends.append(metadata.num_reqs)
        counts.append(0)
    sizes = np.array(counts, dtype=np.int64)
    return CascadeLevel(
        qo_indptr=torch.from_numpy(qo_indptr[ends].astype(np.int32, copy=False)),
        kv_indptr=_indptr(sizes),
        kv_indices=torch.from_numpy(np.concatenate(pieces)),
        kv_last_page_len=_int32(np.where(sizes > 0, metadata.block_size, 0)),
    )


def _private_level(metadata: AttentionMetadata, covered: Ints) -> CascadeLevel:
    """Return the level of what no level above it covers: the flat batch less that many blocks."""
    indptr, indices = metadata.kv_indptr.numpy(), metadata.kv_indices.numpy()
    begins, ends = (indptr[:-1] + covered).tolist(), indptr[1:].tolist()
    own = [indices[begin:end] for begin, end in zip(begins, ends, strict=True)]
    return CascadeLevel(
        qo_indptr=metadata.qo_indptr,
        kv_indptr=_indptr(np.diff(indptr) - covered),
        kv_indices=torch.from_numpy(np.concatenate(own)),
        kv_last_page_len=metadata.kv_last_page_len,
    )


def _indptr(counts: Ints) -> torch.Tensor:
    indptr = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=indptr[1:])
    return torch.from_numpy(indptr)


def _int32(values: Ints) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.int32))
