"""`PrefixCache` against a shadow of every KV slot, with allocations that fail on purpose."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from radixserve.core.invariants import check_cache
from radixserve.core.prefix_cache import PrefixCache, PrivateTail
from radixserve.types import BlockId, Namespace, pack_ids
from tests.kit.faulty_pool import FaultyPool
from tests.kit.truth import Path, Tokens, paths_of, shared_len

if TYPE_CHECKING:
    from radixserve.core.plan import BlockCopy
    from radixserve.core.prefix_cache import Lease
    from radixserve.core.prefix_match import PrefixMatch

SPACE = st.sampled_from([Namespace(), Namespace(), Namespace(salt="x")])
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=20).map(tuple)
FEW = st.lists(st.integers(0, 1), min_size=1, max_size=6).map(tuple)
PICK = st.integers(0, 1 << 16)


@dataclass
class Tenant:
    """Somebody with a lease, the tokens it is for, and how many of them have been computed."""

    lease: Lease
    namespace: Namespace
    tokens: Tokens
    computed_len: int
    copy: BlockCopy | None


class CacheMachine(RuleBasedStateMachine):
    @initialize(block_size=st.sampled_from([1, 2, 3, 4]), num_blocks=st.integers(8, 40))
    def start(self, block_size: int, num_blocks: int) -> None:
        self.cache = PrefixCache(num_blocks=num_blocks, block_size=block_size)
        self.pool = FaultyPool(num_blocks)
        self.cache.pool = self.pool
        self.tenants: list[Tenant] = []
        self.cached: dict[Path, int] = {}
        self.kv: dict[tuple[int, int], Path] = {}

    # -- rules ---------------------------------------------------------------------------------

    @rule(namespace=SPACE, tokens=TOKENS, reserve=st.integers(0, 3), fails=st.booleans())
    def acquire(self, namespace: Namespace, tokens: Tokens, reserve: int, fails: bool) -> None:
        self.try_acquire(namespace, tokens, reserve=reserve, private_tail=None, fails=fails)

    @precondition(lambda self: self.tenants)
    @rule(pick=PICK, keep=PICK, more=FEW, fails=st.booleans())
    def fork(self, pick: int, keep: int, more: Tokens, fails: bool) -> None:
        source = self.tenants[pick % len(self.tenants)]
        self.make_copy(source)
        tokens = source.tokens[: keep % (len(source.tokens) + 1)] + more
        match = self.cache.match(pack_ids(tokens), source.namespace)
        place = match.matched_len // self.cache.block_size
        tail = None
        if source.lease.num_shared <= place < len(source.lease.table):
            shared = min(shared_len(tokens[:-1], source.tokens), source.computed_len)
            tail = PrivateTail(BlockId(source.lease.table[place]), shared - match.matched_len)
        tail = tail if tail and tail.num_tokens > 0 else None
        self.try_acquire(source.namespace, tokens, reserve=0, private_tail=tail, fails=fails)

    @precondition(lambda self: self.tenants)
    @rule(pick=PICK, more=FEW, fails=st.booleans())
    def extend(self, pick: int, more: Tokens, fails: bool) -> None:
        tenant = self.tenants[pick % len(self.tenants)]
        num_tokens = len(tenant.tokens) + len(more)
        table = tenant.lease.table.tolist()
        missing = max(0, self.cache.num_blocks_for(num_tokens) - len(table))
        fits = self.cache.num_available_blocks >= missing
        shortage = max(0, missing - self.pool.num_free)
        failures = self.pool.num_failures
        if fails:
            self.pool.arm(1)

        done = self.cache.extend(tenant.lease, num_tokens)

        assert done == (fits and not self.has_failed(failures, fails))
        assert tenant.lease.table[: len(table)].tolist() == table
        self.settle(evicted=shortage if fits else 0)
        if done:
            tenant.tokens += more
            assert len(tenant.lease.table) == len(table) + missing
            self.forget(tenant.lease.table[len(table) :])
        else:
            assert tenant.lease.table.tolist() == table

    @precondition(lambda self: self.tenants)
    @rule(pick=PICK, most=st.integers(1, 9))
    def compute_and_commit(self, pick: int, most: int) -> None:
        tenant = self.tenants[pick % len(self.tenants)]
        self.make_copy(tenant)
        begin, block_size = tenant.computed_len, self.cache.block_size
        tenant.computed_len = end = min(len(tenant.tokens), begin + most)
        for place in range(begin, end):
            assert place // block_size >= tenant.lease.num_shared, "writes into a shared block"
            slot = tenant.lease.table[place // block_size], place % block_size
            self.kv[slot] = tenant.namespace, tenant.tokens[: place + 1]
        before = tenant.lease.table.tolist()

        self.cache.commit(tenant.lease, pack_ids(tenant.tokens), end)

        for place in range(end // block_size):
            path = tenant.namespace, tenant.tokens[: (place + 1) * block_size]
            self.cached.setdefault(path, before[place])
            assert tenant.lease.table[place] == self.cached[path]
        assert tenant.lease.table[end // block_size :].tolist() == before[end // block_size :]
        assert tenant.lease.num_shared == end // block_size
        self.settle(evicted=0)

    @precondition(lambda self: self.tenants)
    @rule(pick=PICK)
    def release(self, pick: int) -> None:
        tenant = self.tenants.pop(pick % len(self.tenants))
        free = self.pool.num_free + tenant.lease.num_private

        self.cache.release(tenant.lease)

        assert self.pool.num_free == free
        self.settle(evicted=0)

    @precondition(lambda self: self.tenants)
    @rule(pick=PICK)
    def copy_is_made(self, pick: int) -> None:
        self.make_copy(self.tenants[pick % len(self.tenants)])

    @rule(number=st.integers(0, 5))
    def evict(self, number: int) -> None:
        possible = self.cache.tree.num_evictable_blocks

        assert self.cache.evict(number) == min(number, possible)

        self.settle(evicted=min(number, possible))

    @rule()
    def flush(self) -> None:
        possible = self.cache.tree.num_evictable_blocks

        assert self.cache.flush() == possible

        self.settle(evicted=possible)
        assert self.cache.tree.num_evictable_blocks == 0

    # -- what the rules share ------------------------------------------------------------------

    def has_failed(self, before: int, fails: bool) -> bool:
        """Whether an allocation has failed on purpose since `before`."""
        if fails:
            self.pool.disarm()
        return self.pool.num_failures > before

    def try_acquire(
        self,
        namespace: Namespace,
        tokens: Tokens,
        *,
        reserve: int,
        private_tail: PrivateTail | None,
        fails: bool,
    ) -> None:
        match = self.cache.match(pack_ids(tokens), namespace)
        assert match.total_len == self.longest_cached(namespace, tokens)
        keeps_tail, fits = self.predict(match, len(tokens), reserve, private_tail)
        missing = self.cache.num_blocks_for(len(tokens)) - match.matched_len // (
            self.cache.block_size
        )
        shortage = max(0, missing - self.pool.num_free)
        tables = [tenant.lease.table.tolist() for tenant in self.tenants]
        failures = self.pool.num_failures
        if fails:
            self.pool.arm(1)

        got = self.cache.acquire(match, len(tokens), reserve=reserve, private_tail=private_tail)

        assert (got is not None) == (fits and not self.has_failed(failures, fails))
        assert [tenant.lease.table.tolist() for tenant in self.tenants] == tables
        self.settle(evicted=shortage if fits else 0)
        if got is None:
            return
        self.forget(got.lease.private_blocks)
        tail_len = match.total_len - match.matched_len if keeps_tail else 0
        if private_tail is not None:
            tail_len = max(tail_len, private_tail.num_tokens)
        assert got.cached_len == match.matched_len + tail_len < len(tokens)
        assert (got.copy is not None) == (tail_len > 0)
        assert len(got.lease.table) == self.cache.num_blocks_for(len(tokens))
        tenant = Tenant(got.lease, namespace, tokens, got.cached_len, got.copy)
        self.tenants.append(tenant)
        if private_tail is not None:
            self.make_copy(tenant)  # the source is another tenant's: it is not pinned

    def predict(
        self, match: PrefixMatch, num_tokens: int, reserve: int, tail: PrivateTail | None
    ) -> tuple[bool, bool]:
        """Whether the tree's tail is used, and whether the whole fits."""
        needed = self.cache.num_blocks_for(num_tokens) + reserve
        needed -= match.matched_len // self.cache.block_size
        tail_len = match.tail.num_tokens if match.tail else 0
        wants_tail = tail_len > 0 and not (tail and tail.num_tokens > tail_len)
        free, beside = self.pool.num_free, self.cache.tree.num_evictable_beside
        if wants_tail and free + beside(match, keep_tail=True) >= needed:
            return True, True
        return False, free + beside(match, keep_tail=False) >= needed

    def longest_cached(self, namespace: Namespace, tokens: Tokens) -> int:
        cached = [path[1] for path in self.cached if path[0] == namespace]
        return max((shared_len(path, tokens[:-1]) for path in cached), default=0)

    def make_copy(self, tenant: Tenant) -> None:
        """Do what a runner does with a copy, and check that its source still holds its KV."""
        copy = tenant.copy
        if copy is None:
            return
        start = tenant.computed_len - copy.num_tokens
        assert tenant.lease.table[start // self.cache.block_size] == copy.target
        for offset in range(copy.num_tokens):
            path = tenant.namespace, tenant.tokens[: start + offset + 1]
            assert self.kv[copy.source, offset] == path
            self.kv[copy.target, offset] = path
        self.cache.copy_made(tenant.lease)
        tenant.copy = None

    def forget(self, blocks: object) -> None:
        """Blocks that somebody just got hold nothing that may be read."""
        fresh = set(blocks)  # type: ignore[call-overload]
        self.kv = {slot: path for slot, path in self.kv.items() if slot[0] not in fresh}

    def settle(self, *, evicted: int) -> None:
        """The tree has lost exactly that many blocks, and is else what it should be."""
        now = paths_of(self.cache.tree)
        assert now.items() <= self.cached.items()
        assert len(self.cached) - len(now) == evicted
        self.cached = now
        free = [b for b in range(self.pool.num_blocks) if self.pool.is_free(BlockId(b))]
        self.forget(free)

    @invariant()
    def nobody_sees_foreign_kv(self) -> None:
        check_cache(self.cache, [tenant.lease for tenant in self.tenants])
        block_size = self.cache.block_size
        for tenant in self.tenants:
            start = tenant.copy.num_tokens if tenant.copy else 0
            for place in range(tenant.computed_len - start):
                slot = tenant.lease.table[place // block_size], place % block_size
                assert self.kv[slot] == (tenant.namespace, tenant.tokens[: place + 1])
        for (namespace, tokens), block in self.cached.items():
            for offset in range(block_size):
                end = len(tokens) - block_size + offset + 1
                assert self.kv[block, offset] == (namespace, tokens[:end])

    def teardown(self) -> None:
        if not hasattr(self, "cache"):
            return
        while self.tenants:
            self.release(0)
        assert self.cache.num_private_blocks == 0
        assert self.cache.tree.num_protected_blocks == 0
        self.flush()
        assert self.pool.num_free == self.pool.num_blocks


def play(machine: CacheMachine, dice: random.Random, num_rules: int) -> None:
    """Apply rules drawn by `dice`."""
    for _ in range(num_rules):
        tokens = tuple(dice.choices((0, 1), k=dice.randint(1, 20)))
        pick, fate = dice.randrange(1 << 16), dice.random()
        if fate < 0.4 or not machine.tenants:
            machine.acquire(Namespace(), tokens, 0, False)
        elif fate < 0.5:
            machine.fork(pick, dice.randrange(1 << 16), tokens[:6], False)
        elif fate < 0.7:
            machine.extend(pick, tokens[:6], False)
        elif fate < 0.9:
            machine.compute_and_commit(pick, 9)
        else:
            machine.release(pick)
        machine.nobody_sees_foreign_kv()


def test_whichever_allocation_fails_nothing_is_lost() -> None:
    for k in count(1):
        machine = CacheMachine()
        machine.start(block_size=3, num_blocks=24)
        machine.pool.arm(k)
        play(machine, random.Random(5), num_rules=60)
        machine.teardown()
        if machine.pool.num_failures == 0:
            break
    assert k > 20, "too few allocations to mean anything"


TestCache = CacheMachine.TestCase
