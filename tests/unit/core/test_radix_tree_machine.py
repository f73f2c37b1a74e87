"""The radix tree against `TreeTruth`, over short sequences of few tokens so that all collide."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from radixserve.core.invariants import check_tree
from radixserve.core.radix_tree import RadixTree
from radixserve.types import BlockId, Namespace, pack_ids
from tests.kit.truth import Tokens, TreeTruth, paths_of

if TYPE_CHECKING:
    from radixserve.core.prefix_match import PrefixHandle

SPACE = st.sampled_from([Namespace(), Namespace(), Namespace(salt="x"), Namespace(adapter="x")])
TOKENS = st.lists(st.integers(0, 2), max_size=14).map(tuple)
PICK = st.integers(0, 1 << 16)


@dataclass
class Held:
    """A live handle and the path that it must stand for."""

    handle: PrefixHandle
    namespace: Namespace
    tokens: Tokens


class TreeMachine(RuleBasedStateMachine):
    @initialize(block_size=st.sampled_from([1, 2, 3, 4]))
    def start(self, block_size: int) -> None:
        self.tree = RadixTree(block_size)
        self.truth = TreeTruth(block_size)
        self.held: list[Held] = []
        self.next_block = 0

    def fresh_blocks(self, count: int) -> list[BlockId]:
        """Ids that were never used: so a wrong one cannot look right by chance."""
        first = self.next_block
        self.next_block += count
        return [BlockId(block) for block in range(first, self.next_block)]

    def whole(self, tokens: Tokens) -> Tokens:
        return tokens[: len(tokens) - len(tokens) % self.tree.block_size]

    @rule(namespace=SPACE, tokens=TOKENS)
    def insert(self, namespace: Namespace, tokens: Tokens) -> None:
        tokens = self.whole(tokens)
        blocks = self.fresh_blocks(len(tokens) // self.tree.block_size)

        result = self.tree.insert(pack_ids(tokens), blocks, namespace)

        assert result.duplicates == self.truth.publish(namespace, tokens, blocks)
        assert result.blocks == self.truth.blocks(namespace, tokens)
        self.truth.touch(namespace, tokens)

    @rule(namespace=SPACE, tokens=TOKENS)
    def match(self, namespace: Namespace, tokens: Tokens) -> None:
        found = self.tree.match_prefix(pack_ids(tokens), namespace)

        assert found.matched_len == self.truth.matched_len(namespace, tokens)
        assert found.total_len == self.truth.total_len(namespace, tokens)
        if found.tail is not None:
            total_len = found.total_len
            holders = [
                self.truth.block_at[path]
                for path in self.truth.of(namespace)
                if len(path[1]) == found.matched_len + self.tree.block_size
                and path[1][:total_len] == tokens[:total_len]
            ]
            assert found.tail.block in holders
            assert 0 < found.tail.num_tokens < len(tokens) - found.matched_len

    @rule(namespace=SPACE, tokens=TOKENS, keep_tail=st.booleans())
    def lock(self, namespace: Namespace, tokens: Tokens, keep_tail: bool) -> None:
        found = self.tree.match_prefix(pack_ids(tokens), namespace)
        predicted = self.tree.num_evictable_beside(found, keep_tail=keep_tail)

        self.hold(self.tree.lock(found), namespace, tokens[: found.matched_len])
        if keep_tail and found.tail is not None:
            pin = self.tree.lock_tail(found.tail)
            blocks = list(self.tree.path_blocks(pin))
            path = next(path for path, block in self.truth.block_at.items() if block == blocks[-1])
            assert path[1][: found.total_len] == tokens[: found.total_len]
            assert found.tail.block in blocks
            self.hold(pin, namespace, path[1])

        assert self.tree.num_evictable_blocks == predicted

    def hold(self, handle: PrefixHandle, namespace: Namespace, tokens: Tokens) -> None:
        self.truth.lock(namespace, tokens)
        self.truth.touch(namespace, tokens)
        self.held.append(Held(handle, namespace, tokens))

    @precondition(lambda self: self.held)
    @rule(pick=PICK)
    def unlock(self, pick: int) -> None:
        held = self.held.pop(pick % len(self.held))

        self.tree.unlock(held.handle)

        self.truth.unlock(held.namespace, held.tokens)
        self.truth.touch(held.namespace, held.tokens)

    @precondition(lambda self: self.held)
    @rule(pick=PICK, more=TOKENS)
    def extend(self, pick: int, more: Tokens) -> None:
        held = self.held[pick % len(self.held)]
        more = self.whole(more)
        blocks = self.fresh_blocks(len(more) // self.tree.block_size)

        result = self.tree.extend(held.handle, pack_ids(more), blocks)

        first = len(held.tokens) // self.tree.block_size
        self.truth.unlock(held.namespace, held.tokens)
        held.tokens = (*held.tokens, *more)
        duplicates = self.truth.publish(held.namespace, held.tokens, blocks, first=first)
        self.truth.lock(held.namespace, held.tokens)
        assert result.duplicates == duplicates
        assert result.blocks == self.truth.blocks(held.namespace, held.tokens)[first:]

    @rule(count=st.integers(0, 6))
    def evict(self, count: int) -> None:
        possible = self.truth.num_evictable

        freed = self.tree.evict(count)

        assert len(freed) == min(count, possible)
        assert set(freed) == self.truth.evict(count)

    @invariant()
    def agrees_with_the_truth(self) -> None:
        check_tree(self.tree)
        assert paths_of(self.tree) == self.truth.block_at
        assert self.tree.num_evictable_blocks == self.truth.num_evictable
        assert self.tree.num_protected_blocks == self.truth.num_protected
        for held in self.held:
            blocks = self.truth.blocks(held.namespace, held.tokens)
            assert list(self.tree.path_blocks(held.handle)) == blocks

    def teardown(self) -> None:
        if not hasattr(self, "tree"):
            return
        for held in self.held:
            self.tree.unlock(held.handle)
        self.tree.evict(self.tree.num_evictable_blocks)
        check_tree(self.tree)
        assert list(self.tree.nodes()) == []


TestTree = TreeMachine.TestCase
