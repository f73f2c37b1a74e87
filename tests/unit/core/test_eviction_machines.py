"""Every policy in the tree, under the cache and under the scheduler, through their state machines.

What is evicted differs, so the truth is told; everything else must be as with the default.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from radixserve.core.eviction import Ending, Keep, ReleaseHint
from radixserve.core.eviction.hinted import HintedIndex
from radixserve.core.eviction.names import POLICY_NAMES, find_eviction_policy
from radixserve.core.prefix_cache import PrefixCache
from radixserve.core.radix_tree import RadixTree
from tests.kit.truth import TreeTruth
from tests.unit.core import test_prefix_cache_machine, test_scheduler_machine
from tests.unit.core.test_prefix_cache_machine import CacheMachine
from tests.unit.core.test_radix_tree_machine import PICK, TreeMachine
from tests.unit.core.test_scheduler_machine import SchedulerMachine

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve.core.node import Node

MAX_HELD_SHARE = 0.3
NUM_BLOCKS = 20
"""What the policies are told; the tree machine has no pool."""

HINTS = st.builds(
    ReleaseHint,
    ending=st.sampled_from(Ending),
    keep=st.sampled_from(Keep),
    prefix_len=st.integers(0, 8),
    hold_s=st.sampled_from([0.0, 0.0, 1.0, 5.0]),
    is_session_end=st.booleans(),
    priority=st.integers(0, 2),
)


class PolicyMachine(TreeMachine):
    """The tree's own machine with some policy, hints at every unlock, and a clock."""

    @initialize(block_size=st.sampled_from([1, 2, 3, 4]), policy=st.sampled_from(POLICY_NAMES))
    def start(self, block_size: int, policy: str = "lru") -> None:
        super().start(block_size)
        make_index = find_eviction_policy(
            policy, num_blocks=NUM_BLOCKS, block_size=block_size, hold_share=MAX_HELD_SHARE
        )
        self.tree = RadixTree(block_size, make_index)
        self.truth = TreeTruth(block_size)
        self.now_s = 0.0

    @precondition(lambda self: self.held)
    @rule(pick=PICK, hint=HINTS)
    def unlock_with_a_hint(self, pick: int, hint: ReleaseHint) -> None:
        held = self.held.pop(pick % len(self.held))
        self.tree.unlock(held.handle, hint)
        self.truth.unlock(held.namespace, held.tokens)
        self.truth.touch(held.namespace, held.tokens)

    @rule(seconds=st.sampled_from([0.5, 2.0]))
    def tick(self, seconds: float) -> None:
        self.now_s += seconds
        self.tree.tick(self.now_s)

    @rule(count=st.integers(0, 6))
    def evict(self, count: int) -> None:
        possible = self.truth.num_evictable
        path_of = {block: path for path, block in self.truth.block_at.items()}

        freed = self.tree.evict(count)

        assert len(freed) == min(count, possible)
        for block in freed:
            path = path_of[block]
            assert self.truth.locks[path] == 0
            del self.truth.block_at[path], self.truth.age[path]
        whole = {
            (namespace, tokens[: -self.tree.block_size])
            for namespace, tokens in self.truth.block_at
            if len(tokens) > self.tree.block_size
        }
        assert whole <= self.truth.block_at.keys(), "a block outlived the one before it"

    @invariant()
    def holds_keep_within_their_budget(self) -> None:
        index = self.tree.evictable
        assert isinstance(index, HintedIndex)
        kept: set[Node] = set()
        for leaf in index.held():
            node: Node | None = leaf
            while node is not None:
                kept.add(node)
                node = node.parent
        assert sum(len(node.blocks) for node in kept) <= MAX_HELD_SHARE * NUM_BLOCKS


TestPolicies = PolicyMachine.TestCase

FEW = settings(max_examples=max(1, settings().max_examples // 12), stateful_step_count=25)
"""Once for each policy: a share of what the profile gives."""


def cache_maker(policy: str) -> Callable[..., PrefixCache]:
    """Return what makes a cache with a policy."""

    def make(*, num_blocks: int, block_size: int) -> PrefixCache:
        make_index = find_eviction_policy(policy, num_blocks=num_blocks, block_size=block_size)
        return PrefixCache(num_blocks=num_blocks, block_size=block_size, make_index=make_index)

    return make


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_nobody_sees_foreign_kv_under(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_prefix_cache_machine, "PrefixCache", cache_maker(policy))
    run_state_machine_as_test(CacheMachine, settings=FEW)


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_every_request_is_served_as_if_alone_under(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(test_scheduler_machine, "PrefixCache", cache_maker(policy))
    run_state_machine_as_test(SchedulerMachine, settings=FEW)
