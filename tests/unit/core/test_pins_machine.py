"""Pins, flushes and events over the tree's own machine: a mirror fed by events alone keeps up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from radixserve.core.eviction.hinted import HintedIndex
from radixserve.core.eviction.names import POLICY_NAMES
from radixserve.core.pins import Pin, PinRequest, Pins
from radixserve.core.tree_events import Cleared, Removed, Stored
from radixserve.types import Namespace, pack_ids, unpack_ids
from tests.unit.core.test_eviction_machines import PolicyMachine
from tests.unit.core.test_radix_tree_machine import SPACE, TOKENS

if TYPE_CHECKING:
    from radixserve.core.node import Node
    from tests.kit.truth import Path, Tokens

NAMES = st.sampled_from(["", "a", "b"])


class Mirror:
    """What a listener believes to be cached: block by block, from events and nothing else."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.path_of: dict[int, Path] = {}

    def hear(self, event: Stored | Removed | Cleared) -> None:
        if isinstance(event, Cleared):
            self.path_of.clear()
        elif isinstance(event, Removed):
            for block in event.blocks:
                del self.path_of[block]
        else:
            above = () if event.parent is None else self.path_of[event.parent][1]
            tokens = (*above, *unpack_ids(event.key))
            for place, block in enumerate(event.blocks, start=1):
                assert block not in self.path_of
                end = len(above) + place * self.block_size
                self.path_of[block] = (event.namespace, tokens[:end])
            assert len(tokens) == end


class PinMachine(PolicyMachine):
    @initialize(block_size=st.sampled_from([1, 2, 3, 4]), policy=st.sampled_from(POLICY_NAMES))
    def start(self, block_size: int, policy: str = "lru") -> None:
        super().start(block_size, policy)
        self.pins = Pins(self.tree)
        self.tree.events = []
        self.mirror = Mirror(block_size)

    @rule(namespace=SPACE, tokens=TOKENS, ttl_s=st.sampled_from([1.0, 5.0]), name=NAMES)
    def pin(self, namespace: Namespace, tokens: Tokens, ttl_s: float, name: str) -> None:
        names = {pin.name for pin in self.pins}
        request = PinRequest(key=pack_ids(tokens), namespace=namespace, ttl_s=ttl_s, name=name)
        cached_len = self.truth.matched_len(namespace, (*tokens, 0))

        answer = self.pins.pin(request)

        assert answer.cached_len == cached_len
        if answer.is_pinned:
            pin = next(pin for pin in self.pins if pin.name == answer.name)
            assert pin.pinned_len == answer.cached_len > 0
            assert {pin.name for pin in self.pins} == names | {answer.name}
            self.truth.touch(namespace, tokens[: answer.cached_len])
        else:
            assert {pin.name for pin in self.pins} == names
            spent = answer.held_blocks + answer.cost_blocks
            assert answer.cached_len == 0 or spent > answer.max_held_blocks

    @rule(name=NAMES)
    def unpin(self, name: str) -> None:
        was_there = any(pin.name == name for pin in self.pins)
        assert self.pins.unpin(name) == was_there
        assert all(pin.name != name for pin in self.pins)

    @rule(namespace=SPACE, tokens=TOKENS)
    def unpin_prefix(self, namespace: Namespace, tokens: Tokens) -> None:
        for name in self.pins.unpin_prefix(pack_ids(tokens), namespace):
            assert all(pin.name != name for pin in self.pins)

    @rule(seconds=st.sampled_from([0.5, 2.0]))
    def tick(self, seconds: float) -> None:
        super().tick(seconds)
        self.pins.expire(self.now_s)
        assert all(pin.until_s > self.now_s for pin in self.pins)

    @rule(count=st.integers(0, 6))
    def evict(self, count: int) -> None:
        kept = {pin: pin.pinned_len for pin in self.pins}

        super().evict(count)

        gone = [pin for pin, length in kept.items() if self.is_shorter(pin, length)]
        if gone:
            index = self.tree.evictable
            assert isinstance(index, HintedIndex)
            assert list(index) == list(index.held()), "a pin went before what nobody holds"

    def is_shorter(self, pin: Pin, length: int) -> bool:
        return all(each is not pin for each in self.pins) or pin.pinned_len < length

    @rule(namespace=st.none() | SPACE)
    def flush(self, namespace: Namespace | None) -> None:
        gone = {
            path: block
            for path, block in self.truth.block_at.items()
            if namespace in (None, path[0]) and self.truth.locks[path] == 0
        }

        freed = self.tree.flush(namespace)

        assert sorted(freed) == sorted(gone.values())
        for path in gone:
            del self.truth.block_at[path], self.truth.age[path]

    @invariant()
    def the_mirror_agrees(self) -> None:
        assert self.tree.events is not None
        for event in self.tree.events:
            self.mirror.hear(event)
        self.tree.events.clear()
        assert self.mirror.path_of == {block: path for path, block in self.truth.block_at.items()}

    @invariant()
    def pins_stand_and_are_counted(self) -> None:
        self.pins.check()
        kept: set[Node] = set()
        for pin in self.pins:
            node: Node | None = pin.node
            while node is not None:
                kept.add(node)
                node = node.parent
        assert sum(len(node.blocks) for node in kept) <= self.pins.held_blocks
        assert self.pins.held_blocks <= self.pins.max_held_blocks

    def teardown(self) -> None:
        if not hasattr(self, "tree"):
            return
        super().teardown()
        assert len(self.pins) == self.pins.held_blocks == 0


TestPins = PinMachine.TestCase
