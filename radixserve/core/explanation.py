"""What the cache would do for a prompt that came now, and what would keep it from running."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from radixserve.core.admission import find_leader
from radixserve.core.obstacles import MemoryNeed, Obstacle, has_chunk, has_slot, memory_need
from radixserve.core.req import Req
from radixserve.types import ID_BYTES, unpack_ids

if TYPE_CHECKING:
    from collections.abc import Iterator

    from radixserve.core.node import Node
    from radixserve.core.prefix_match import PrefixMatch
    from radixserve.core.req import ReqSpec
    from radixserve.core.scheduler import Scheduler
    from radixserve.types import ReqId, TokenId

NEXT_RUNS = 4
"""Continuations shown where a prompt leaves the tree."""
NEXT_TOKENS = 8
"""Tokens of each."""

_ONE_MORE = bytes(ID_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What a prompt would find. Lengths in tokens."""

    prompt_len: int
    cached_len: int
    """Leading tokens that need not be computed; at least one always is."""
    whole_blocks_len: int
    """Those of them that are shared in place."""
    tail_len: int
    """Those of them that are copied from a block that agrees only in part."""
    diverges_at: int | None
    """Position of the first token that the tree does not have; None if it has all of them."""
    next_in_tree: tuple[tuple[TokenId, ...], ...]
    """How the tree goes on there instead; a few of its ways, if it has several."""
    memory: MemoryNeed
    obstacles: tuple[Obstacle, ...]
    """Why it would not be admitted in the next step; none of them: it would be."""
    never_fits: str | None
    """Why it could never be served."""
    leader: ReqId | None
    """A running Req that is computing a prefix of it."""
    num_running: int
    max_running: int
    num_queued_before: int

    @property
    def would_be_admitted(self) -> bool:
        """Whether the next step would admit it."""
        return not self.obstacles and self.never_fits is None


def explain(scheduler: Scheduler, spec: ReqSpec) -> Explanation:
    """Return what would become of a Req that has not been added. Changes nothing.

    It is a forecast: by the next step somebody may have ended, or come. A Req of a higher priority
    may in truth take the place of others.

    Complexity: O(prompt bytes + running Reqs).
    """
    tree = scheduler.cache.tree
    req = Req(spec, arrival=0)
    match = scheduler.cache.match(spec.prompt[: (req.reusable_len + 1) * ID_BYTES], spec.namespace)
    known = tree.match_prefix(spec.prompt + _ONE_MORE, spec.namespace)
    need = memory_need(scheduler, match, spec.prompt_len)
    leader = _leader_of(req, match, scheduler)
    diverges_at = known.total_len if known.total_len < spec.prompt_len else None
    return Explanation(
        prompt_len=spec.prompt_len,
        cached_len=match.total_len,
        whole_blocks_len=match.matched_len,
        tail_len=match.total_len - match.matched_len,
        diverges_at=diverges_at,
        next_in_tree=() if diverges_at is None else tuple(_ways_on(known)),
        memory=need,
        obstacles=tuple(_obstacles(scheduler, need, leader)),
        never_fits=scheduler.refusal(spec.prompt_len, spec.params.max_tokens),
        leader=leader.req_id if leader else None,
        num_running=len(scheduler.queues.running),
        max_running=scheduler.config.max_num_seqs,
        num_queued_before=scheduler.num_queued,
    )


def _leader_of(req: Req, match: PrefixMatch, scheduler: Scheduler) -> Req | None:
    if not scheduler.cache.shares_prefixes:
        return None
    prefilling = [other for other in scheduler.queues.running.values() if not other.is_decoding]
    block_size = scheduler.cache.block_size
    found = find_leader(req, match.total_len, prefilling, min_gain=block_size)
    return found[0] if found else None


def _obstacles(scheduler: Scheduler, need: MemoryNeed, leader: Req | None) -> Iterator[Obstacle]:
    if leader is not None:
        yield Obstacle.PREFIX
    if not has_slot(scheduler):
        yield Obstacle.SLOT
    if not has_chunk(scheduler):
        yield Obstacle.CHUNK
    if not need.is_met:
        yield Obstacle.MEMORY
    if scheduler.num_queued:
        yield Obstacle.QUEUE


def _ways_on(match: PrefixMatch) -> Iterator[tuple[TokenId, ...]]:
    """Yield how the tree goes on after the longest common prefix."""
    node = match.node
    if node is None:
        return
    tail = match.tail
    inside = match.node_blocks < len(node.blocks)
    end = tail.node if tail is not None else node if inside else None
    if end is not None:
        start = end.end_len - len(end.key) // ID_BYTES
        yield _first_tokens(end, match.total_len - start)
        return
    for child in islice(node.children or (), NEXT_RUNS):
        yield _first_tokens(child, 0)


def _first_tokens(node: Node, skipped: int) -> tuple[TokenId, ...]:
    run = node.key[skipped * ID_BYTES : (skipped + NEXT_TOKENS) * ID_BYTES]
    return tuple(unpack_ids(run))
