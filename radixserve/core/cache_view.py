"""Frozen pictures of the cache: its sizes, its namespaces, and the upper part of its tree.

Whoever takes one changes nothing, and what it costs is bounded whatever the tree's size.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Literal, TypeAlias

from radixserve.types import ID_BYTES, unpack_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from radixserve.core.node import Node
    from radixserve.core.pins import Pin
    from radixserve.core.prefix_cache import PrefixCache
    from radixserve.core.radix_tree import RadixTree
    from radixserve.core.scheduler import Scheduler
    from radixserve.core.stats import SchedulerStats
    from radixserve.types import Namespace, TokenId

MAX_WALKED_NODES = 2048
"""Most nodes looked at for one picture: about five milliseconds."""
MAX_DEPTH = 64
MAX_LISTED_NAMESPACES = 100
MAX_LISTED_PINS = 100
FIRST_TOKENS = 32
"""Tokens of each run that a picture shows."""

RankBy: TypeAlias = Literal["tokens", "users", "hits"]


@dataclass(frozen=True, slots=True)
class NamespaceView:
    """One namespace: what is cached of it, and what it has asked for. In tokens."""

    namespace: Namespace
    cached_tokens: int
    """In the tree now."""
    prompt_tokens: int
    """Of all its requests, as far as they are remembered."""
    hit_tokens: int
    """Those of `prompt_tokens` that were found in the cache."""


@dataclass(frozen=True, slots=True)
class PinView:
    """One pin; lengths in tokens."""

    name: str
    namespace: Namespace
    asked_len: int
    pinned_len: int
    expires_in_s: float
    priority: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheView:
    """The whole cache in numbers."""

    stats: SchedulerStats
    flushed_blocks: int
    num_namespaces: int
    """That hold anything now."""
    namespaces: tuple[NamespaceView, ...]
    """Those that hold most, then those used last; not all of them if they are many."""
    num_pins: int
    num_lost_pins: int
    """Pins whose path was evicted or flushed."""
    pins: tuple[PinView, ...]
    held_blocks: int
    max_held_blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """A run of tokens in the tree, and the most important ones of those that follow it."""

    start: int
    """Tokens before it."""
    num_tokens: int
    tokens_below: int
    """Tokens in all runs that follow it; of those that were looked at, if the tree is large."""
    users: int
    """Requests that use it now."""
    hits: int
    """Uses that have ended."""
    idle_uses: int
    """Uses of anything in the tree since this was used last."""
    is_held: bool
    is_pinned: bool
    first_tokens: tuple[TokenId, ...]
    num_children: int
    children: tuple[NodeView, ...]


@dataclass(frozen=True, slots=True)
class RootView:
    """One namespace's part of the tree."""

    namespace: Namespace
    cached_tokens: int
    children: tuple[NodeView, ...]


@dataclass(frozen=True, slots=True)
class TreeView:
    """The runs of the tree that rank highest, each below the one before it."""

    ranked_by: RankBy
    roots: tuple[RootView, ...]
    num_shown: int
    num_walked: int
    is_whole_tree_walked: bool
    """Whether every node was looked at; else a run that ranks high may be missing."""


def everything(namespace: Namespace) -> bool:
    """Accept all namespaces."""
    del namespace
    return True


def view_cache(
    scheduler: Scheduler, now_s: float, accepts: Callable[[Namespace], bool] = everything
) -> CacheView:
    """Return the cache in numbers.

    Args:
        now_s: On the clock of `schedule`.
        accepts: Which namespaces and pins are listed.
    Complexity: O(namespaces that hold anything + pins).
    """
    cache = scheduler.cache
    pins = [pin for pin in cache.pins if accepts(pin.namespace)]
    return CacheView(
        stats=scheduler.stats(),
        flushed_blocks=cache.num_flushed_blocks,
        num_namespaces=sum(1 for _ in cache.tree.roots()),
        namespaces=tuple(
            _namespace_view(scheduler, namespace) for namespace in _foremost(scheduler, accepts)
        ),
        num_pins=len(cache.pins),
        num_lost_pins=cache.pins.num_lost,
        pins=tuple(_pin_view(pin, now_s) for pin in pins[:MAX_LISTED_PINS]),
        held_blocks=cache.pins.held_blocks,
        max_held_blocks=cache.pins.max_held_blocks,
    )


def view_tree(
    tree: RadixTree,
    *,
    by: RankBy = "tokens",
    limit: int = 20,
    depth: int = 8,
    accepts: Callable[[Namespace], bool] = everything,
) -> TreeView:
    """Return the runs that rank highest.

    A run never ranks above the one before it: it has no more tokens from its beginning on, and
    neither more users nor more hits. So the highest ones hang together.

    Args:
        by: tokens: of a run and of all that follow it; users: requests that use it now; hits.
        limit: Most runs.
        depth: Most runs one after the other.
        accepts: Which namespaces are shown.
    Complexity: O(`MAX_WALKED_NODES` * log of it).
    """
    walk = _walk(tree, by, accepts)
    shown = _choose(walk.seen, by, limit=limit, depth=min(depth, MAX_DEPTH))
    below: dict[_Seen, list[_Seen]] = {}
    for seen in shown:  # the highest first
        assert seen.above is not None
        below.setdefault(seen.above, []).append(seen)
    roots = [seen for seen in below if seen.above is None]
    return TreeView(
        ranked_by=by,
        roots=tuple(
            RootView(
                seen.node.namespace,
                seen.node.num_cached * tree.block_size,
                _children(seen, below, tree),
            )
            for seen in sorted(roots, key=lambda seen: _rank(seen, by), reverse=True)
        ),
        num_shown=len(shown),
        num_walked=len(walk.seen) - walk.num_roots,
        is_whole_tree_walked=walk.is_whole,
    )


class _Seen:
    """A node that a walk has come to."""

    __slots__ = ("above", "depth", "node", "tokens")

    def __init__(self, node: Node, above: _Seen | None) -> None:
        self.node = node
        self.above = above
        self.depth: int = above.depth + 1 if above else 0
        self.tokens = len(node.key) // ID_BYTES
        """Its own and, in the end, those below it."""


@dataclass(slots=True)
class _Walk:
    seen: list[_Seen] = field(default_factory=list)
    """Parents before children."""
    num_roots: int = 0
    is_whole: bool = True


def _walk(tree: RadixTree, by: RankBy, accepts: Callable[[Namespace], bool]) -> _Walk:
    """Look at the nodes most likely to rank high, until all or enough have been seen."""
    walk = _Walk()
    order = count()
    heap: list[tuple[int, int, int, Node, _Seen | None]] = []

    def put(nodes: Iterable[Node], above: _Seen | None) -> None:
        room = MAX_WALKED_NODES - len(heap) - len(walk.seen)
        for node in nodes:
            if room <= 0:
                walk.is_whole = False
                return
            room -= 1
            heapq.heappush(heap, (*_promise(node, above, by), next(order), node, above))

    put((root for root in tree.roots() if accepts(root.namespace)), None)
    walk.num_roots = len(heap)
    while heap:
        *_, node, above = heapq.heappop(heap)
        seen = _Seen(node, above)
        walk.seen.append(seen)
        if node.children is not None:
            put(node.children, seen)
    for seen in reversed(walk.seen):
        if seen.above is not None:
            seen.above.tokens += seen.tokens
    return walk


def _promise(node: Node, above: _Seen | None, by: RankBy) -> tuple[int, int]:
    """Return where to look first: low numbers come before high ones."""
    if by == "users":
        return (-node.lock_ref, -node.last_access)
    if by == "hits":
        return (-node.hits, -node.last_access)
    return (above.depth if above else -1, -len(node.blocks))


def _rank(seen: _Seen, by: RankBy) -> int:
    if by == "tokens":
        return seen.tokens
    return seen.node.lock_ref if by == "users" else seen.node.hits


def _choose(walked: list[_Seen], by: RankBy, *, limit: int, depth: int) -> list[_Seen]:
    """Return the nodes that the picture shows, the highest first."""
    fit = [seen for seen in walked if 0 < seen.depth <= depth]
    if by == "users":
        fit = [seen for seen in fit if seen.node.lock_ref]
    # Of equal ones the parent comes first: a picture has no holes.
    return heapq.nsmallest(limit, fit, key=lambda seen: (-_rank(seen, by), seen.depth))


def _children(
    seen: _Seen, below: Mapping[_Seen, list[_Seen]], tree: RadixTree
) -> tuple[NodeView, ...]:
    return tuple(_node_view(child, below, tree) for child in below.get(seen, ()))


def _node_view(seen: _Seen, below: Mapping[_Seen, list[_Seen]], tree: RadixTree) -> NodeView:
    node = seen.node
    num_tokens = len(node.key) // ID_BYTES
    return NodeView(
        start=node.end_len - num_tokens,
        num_tokens=num_tokens,
        tokens_below=seen.tokens - num_tokens,
        users=node.lock_ref,
        hits=node.hits,
        idle_uses=tree.clock - node.last_access,
        is_held=node.hold is not None and node.hold.until_s > tree.now_s,
        is_pinned=node.hold is not None and node.hold.is_pinned,
        first_tokens=tuple(unpack_ids(node.key[: FIRST_TOKENS * ID_BYTES])),
        num_children=len(node.children or ()),
        children=_children(seen, below, tree),
    )


def _foremost(scheduler: Scheduler, accepts: Callable[[Namespace], bool]) -> list[Namespace]:
    """Return the namespaces that hold most, then those used last, up to a bound."""
    roots = (root for root in scheduler.cache.tree.roots() if accepts(root.namespace))
    largest = heapq.nlargest(MAX_LISTED_NAMESPACES, roots, key=lambda root: root.num_cached)
    found = dict.fromkeys(root.namespace for root in largest)
    for namespace in filter(accepts, scheduler.counters.namespaces):
        if len(found) >= MAX_LISTED_NAMESPACES:
            break
        found.setdefault(namespace)
    return list(found)


def _pin_view(pin: Pin, now_s: float) -> PinView:
    return PinView(
        pin.name,
        pin.namespace,
        pin.asked_len,
        pin.pinned_len,
        max(0.0, pin.until_s - now_s),
        pin.priority,
    )


def _namespace_view(scheduler: Scheduler, namespace: Namespace) -> NamespaceView:
    prompt, hits = scheduler.counters.namespaces.of(namespace)
    cache: PrefixCache = scheduler.cache
    cached = cache.num_cached_blocks(namespace) * cache.block_size
    return NamespaceView(namespace, cached, prompt, hits)
