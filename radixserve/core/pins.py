"""Pins: paths that an operator holds by a name and for a time.

A pin is a hold like a hint's (see `eviction.hints`), with two differences: it has a name under
which it can be given up, and it counts against the budget for holds from the first moment,
wherever its path ends. So a pin that was granted stays granted, and one that was not is refused
with numbers.

A pin keeps whole blocks that were cached when it was made, and no lock: a pinned leaf is evicted
when nothing else is left, and a wrong pin costs speed, never an answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

from radixserve.core.eviction.hints import Hold
from radixserve.errors import InvariantError
from radixserve.types import ID_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from radixserve.core.eviction.hold_budget import HoldBudget
    from radixserve.core.node import Node
    from radixserve.core.radix_tree import RadixTree
    from radixserve.types import Namespace, PackedIds

MAX_PINS = 512
"""Pins of one path cost no blocks beyond the first, so their number has a bound of its own."""

_ONE_MORE = bytes(ID_BYTES)
"""A token after the prefix, since a match leaves the last token over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PinRequest:
    """What is to be held, for how long, and under which name."""

    key: PackedIds
    namespace: Namespace
    ttl_s: float
    name: str = ""
    """Made up when empty. A name in use gets the new path."""
    priority: int = 0
    """Among held paths the lower goes first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PinAnswer:
    """What became of a request for a pin; lengths in tokens, the budget in blocks."""

    is_pinned: bool
    name: str
    asked_len: int
    cached_len: int
    """Leading tokens that are cached in whole blocks: what is, or would be, held."""
    cost_blocks: int
    """What the pin adds, or would add, to the blocks that are held."""
    held_blocks: int
    max_held_blocks: int
    num_pins: int


@dataclass(slots=True, eq=False)
class Pin:
    """One name and where its path ends. Written by `Pins` alone."""

    name: str
    node: Node
    namespace: Namespace
    asked_len: int
    digest: bytes
    """Of the tokens asked for."""
    until_s: float
    priority: int

    @property
    def pinned_len(self) -> int:
        """Tokens that it holds; fewer than in the beginning once memory was short."""
        return self.node.end_len


class Pins:
    """All the pins of a tree.

    Args:
        tree: Its eviction order must know a budget for holds; without one every pin is refused.
    """

    def __init__(self, tree: RadixTree) -> None:
        self._tree = tree
        self._budget: HoldBudget | None = tree.evictable.budget
        self._by_name: dict[str, Pin] = {}
        self._at: dict[Node, list[Pin]] = {}
        self._next_end_s = float("inf")
        self._num_named = 0
        self.num_lost = 0
        """Pins whose path was evicted or flushed."""
        tree.pinned_gone = self._node_gone

    def __repr__(self) -> str:
        return f"<Pins {list(self._by_name)}>"

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[Pin]:
        """The oldest first."""
        return iter(self._by_name.values())

    @property
    def held_blocks(self) -> int:
        """Blocks that pins and other holds keep, with all that lies above them."""
        return self._budget.num_blocks if self._budget else 0

    @property
    def max_held_blocks(self) -> int:
        """Most blocks that may be held."""
        return self._budget.max_blocks if self._budget else 0

    def pin(self, request: PinRequest) -> PinAnswer:
        """Hold what is cached of a prefix, or change nothing.

        Nothing is held if nothing is cached, if it is more than the budget has left, or if there
        are `MAX_PINS` pins.

        Mutates: the tree's marks; the path counts as used.
        Complexity: O(prefix bytes + depth).
        """
        match = self._tree.match_prefix(request.key + _ONE_MORE, request.namespace)
        asked_len = len(request.key) // ID_BYTES
        if match.node is None or match.matched_len == 0 or self._budget is None:
            return self._answer(request.name, asked_len, match.matched_len, 0)
        cost = self._budget.cost(match.node, match.node_blocks)
        is_new = request.name not in self._by_name
        has_room = self._budget.num_blocks + cost <= self._budget.max_blocks
        if not has_room or (is_new and len(self._by_name) >= MAX_PINS):
            return self._answer(request.name, asked_len, match.matched_len, cost)
        handle = self._tree.lock(match)
        node = handle.node
        assert node is not None
        self._budget.try_hold(node)
        pin = Pin(
            request.name or self._new_name(),
            node,
            request.namespace,
            asked_len,
            _digest(request.key),
            self._tree.now_s + request.ttl_s,
            request.priority,
        )
        node.hold = self._hold_with(pin)
        self._tree.unlock(handle)
        self.unpin(pin.name)  # an older one of that name
        self._by_name[pin.name] = pin
        self._next_end_s = min(self._next_end_s, pin.until_s)
        return self._answer(pin.name, asked_len, match.matched_len, cost, is_pinned=True)

    def unpin(self, name: str) -> bool:
        """Give up a pin; False if there is none of that name.

        Mutates: the tree's marks.
        Complexity: O(depth + log n).
        """
        pin = self._by_name.pop(name, None)
        if pin is None:
            return False
        assert self._budget is not None
        node = pin.node
        self._budget.let_go(node)
        hold = self._hold_without(pin)
        if node.lock_ref == 0 and node.children is None:
            self._tree.evictable.remark(node, hold)
        else:
            node.hold = hold
        return True

    def unpin_prefix(self, key: PackedIds, namespace: Namespace) -> list[str]:
        """Give up all pins that were asked for with exactly these tokens; return their names.

        Complexity: O(pins).
        """
        digest = _digest(key)
        names = [pin.name for pin in self if pin.digest == digest and pin.namespace == namespace]
        for name in names:
            self.unpin(name)
        return names

    def expire(self, now_s: float) -> None:
        """Give up the pins whose time has come. Complexity: O(1) while there are none."""
        if now_s < self._next_end_s:
            return
        for name in [pin.name for pin in self if pin.until_s <= now_s]:
            self.unpin(name)
        self._next_end_s = min((pin.until_s for pin in self), default=float("inf"))

    def check(self) -> None:
        """Every pin stands in the tree, marked and counted.

        Raises:
            InvariantError: one does not (5).
        """
        nodes = set(self._tree.nodes())
        at = [pin for pins in self._at.values() for pin in pins]
        if len(at) != len(self._by_name) or any(self._by_name.get(p.name) is not p for p in at):
            raise InvariantError(5, f"pins by name and by node differ: {self!r}")
        for pin in self:
            if pin.node not in nodes:
                raise InvariantError(5, f"{pin.name} pins a node that has gone")
            if pin.node.hold is None or not pin.node.hold.is_pinned:
                raise InvariantError(5, f"{pin.node!r} is pinned by {pin.name} and not marked")
            if self._budget is None or self._budget.cost(pin.node) != 0:
                raise InvariantError(5, f"{pin.name} is not counted in {self._budget!r}")

    # -- inside --------------------------------------------------------------------------------

    def _hold_with(self, pin: Pin) -> Hold:
        """Return the mark of a node that gets one more pin."""
        self._at.setdefault(pin.node, []).append(pin)
        hold = pin.node.hold
        if hold is None or hold.is_cold:
            return Hold(pin.until_s, pin.priority, is_pinned=True)
        until_s, priority = max(hold.until_s, pin.until_s), max(hold.priority, pin.priority)
        return Hold(until_s, priority, is_pinned=True)

    def _hold_without(self, pin: Pin) -> Hold | None:
        """Return the mark of a node that loses a pin: the others', or a hint's that goes beyond."""
        hold, pins = pin.node.hold, self._at[pin.node]
        latest_s = max(each.until_s for each in pins)
        pins.remove(pin)
        if not pins:
            del self._at[pin.node]
        if hold is not None and hold.until_s > latest_s:
            return Hold(hold.until_s, hold.priority, bool(pins))
        if not pins:
            return None
        until_s = max(each.until_s for each in pins)
        return Hold(until_s, max(each.priority for each in pins), is_pinned=True)

    def _node_gone(self, node: Node) -> None:
        """A pinned node is given up, by eviction or by a flush."""
        assert self._budget is not None
        for pin in self._at.pop(node):
            self._budget.let_go(node)
            del self._by_name[pin.name]
            self.num_lost += 1

    def _new_name(self) -> str:
        while True:
            self._num_named += 1
            name = f"pin-{self._num_named}"
            if name not in self._by_name:
                return name

    def _answer(
        self, name: str, asked_len: int, cached_len: int, cost: int, *, is_pinned: bool = False
    ) -> PinAnswer:
        return PinAnswer(
            is_pinned=is_pinned,
            name=name,
            asked_len=asked_len,
            cached_len=cached_len,
            cost_blocks=cost,
            held_blocks=self.held_blocks,
            max_held_blocks=self.max_held_blocks,
            num_pins=len(self._by_name),
        )


def _digest(key: PackedIds) -> bytes:
    return blake2b(key, digest_size=16).digest()
