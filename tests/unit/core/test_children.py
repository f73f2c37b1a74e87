"""`Children` against a plain dict, with chunks so small that they split and are swept at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from radixserve.core import children as children_module
from radixserve.core.children import Children
from radixserve.core.common_prefix import common_prefix_len
from radixserve.types import pack_ids

if TYPE_CHECKING:
    import pytest

    from radixserve.core.node import Node

TOKENS = st.lists(st.integers(0, 2), min_size=3, max_size=3)


class ChildrenMachine(RuleBasedStateMachine):
    """Puts and removes children; a child is stood for by its own key."""

    def __init__(self) -> None:
        super().__init__()
        self.children = Children()
        self.truth: dict[bytes, Node] = {}

    @rule(tokens=TOKENS)
    def put(self, tokens: list[int]) -> None:
        key = pack_ids(tokens)
        child = cast("Node", bytes(bytearray(key)))  # an object of its own
        self.children.put(key, child)
        self.truth[key] = child

    @precondition(lambda self: self.truth)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.truth)))
        self.children.remove(key)
        del self.truth[key]

    @rule(tokens=st.lists(st.integers(0, 3), min_size=1, max_size=3))
    def look_for_a_partial_block(self, tokens: list[int]) -> None:
        part = pack_ids(tokens)
        child, shared = self.children.longest_partial(part)
        best = max((common_prefix_len(key, part) for key in self.truth), default=0)
        assert shared == best
        if child is None:
            assert best == 0
        else:
            assert common_prefix_len(cast("bytes", child), part) == best
            assert child is self.truth[cast("bytes", child)]

    @rule(tokens=TOKENS)
    def look_for_a_whole_block(self, tokens: list[int]) -> None:
        key = pack_ids(tokens)
        assert self.children.exact(key) is self.truth.get(key)

    @invariant()
    def children_are_the_truth_in_sorted_order(self) -> None:
        assert len(self.children) == len(self.truth)
        assert list(self.children) == [self.truth[key] for key in sorted(self.truth)]

    @invariant()
    def stale_keys_are_counted_and_chunks_are_well_formed(self) -> None:
        chunks = self.children._chunks
        keys = [key for chunk in chunks for key in chunk]
        assert keys == sorted(set(keys))
        assert self.children._lasts == [chunk[-1] for chunk in chunks]
        assert self.children._num_stale == len(set(keys) - set(self.truth))
        assert all(len(chunk) < 2 * children_module.CHUNK_LEN for chunk in chunks)


def test_children_behave_like_a_sorted_dict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children_module, "CHUNK_LEN", 2)

    run_state_machine_as_test(ChildrenMachine, settings=settings())


def test_stale_keys_never_outnumber_the_children_for_long() -> None:
    children = Children()
    for token in range(20_000):
        children.put(pack_ids([token, 7]), cast("Node", token))
        if token >= 1_000:
            children.remove(pack_ids([token - 1_000, 7]))

    assert len(children) == 1_000
    assert children._num_stale <= 3 * len(children)
