"""The radix tree and the block pool under one roof: what a Req takes from them and gives back.

A block is in exactly one state, and each change of state has one place in the code:

              allocate                    commit
      FREE ------------> PRIVATE(one Req) ------> CACHED(one node, many readers)
       ^ ^                    |                      |
       | `------ release -----'                      |
       `------------------- evict -------------------'

A `Lease` is what one Req holds. Its table is the path of its handle, then its private blocks:

      table   [ 7  3  4 | 9  2 ]
                shared    private
                ^ handle stands at the end of the third block

Commit publishes private blocks that are full. If another Req published the same span first, the
lease takes over the tree's blocks *before* its own duplicates are freed, so no table ever names a
free block (mini-sglang PR #142 is what happens otherwise).
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING

from radixserve.core.block_pool import BlockPool
from radixserve.core.eviction import NO_HINT, LruIndex
from radixserve.core.pins import Pins
from radixserve.core.plan import BlockCopy
from radixserve.core.radix_tree import RadixTree
from radixserve.errors import InvariantError
from radixserve.types import ID_BYTES, BlockId

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve.core.eviction import EvictionIndex, ReleaseHint
    from radixserve.core.prefix_match import PrefixHandle, PrefixMatch
    from radixserve.core.tree_events import TreeEvent
    from radixserve.types import Namespace, PackedIds


class Lease:
    """The blocks one Req may use. Written by `PrefixCache` alone."""

    __slots__ = ("handle", "num_shared", "table", "tail_pin")

    def __init__(self, handle: PrefixHandle, shared: array[int]) -> None:
        self.handle: PrefixHandle | None = handle
        self.table = shared
        """Block ids in the order of the tokens they hold."""
        self.num_shared = len(shared)
        """Leading blocks of the table that belong to the tree."""
        self.tail_pin: PrefixHandle | None = None
        """Holds the source of this Req's block copy until the copy has been made."""

    def __repr__(self) -> str:
        return f"<Lease {self.num_shared} shared + {self.num_private} private>"

    @property
    def num_private(self) -> int:
        """Blocks that only this lease names."""
        return len(self.table) - self.num_shared

    @property
    def private_blocks(self) -> list[BlockId]:
        """The blocks that only this lease names."""
        return [BlockId(block) for block in self.table[self.num_shared :]]


@dataclass(frozen=True, slots=True)
class PrivateTail:
    """The part of a running Req's own, unpublished block that another Req can copy."""

    block: BlockId
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Acquired:
    """A new lease, and how many leading tokens of it need not be computed."""

    lease: Lease
    cached_len: int
    copy: BlockCopy | None
    """To be made before the Req's first step; counted in `cached_len`."""


class PrefixCache:
    """Match, acquire, extend, commit, release, evict: all that a scheduler needs of KV memory.

    Args:
        num_blocks: Blocks in the pool.
        block_size: Tokens a block.
        make_index: The eviction order; least recently used by default.
    """

    shares_prefixes = True
    """Whether what one Req publishes can be found by another."""

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        make_index: Callable[[], EvictionIndex] = LruIndex,
    ) -> None:
        self.block_size = block_size
        self.pool = BlockPool(num_blocks)
        self.tree = RadixTree(block_size, make_index)
        self.pins = Pins(self.tree)
        self.num_evicted_blocks = 0
        self.num_flushed_blocks = 0

    def __repr__(self) -> str:
        return (
            f"<PrefixCache free={self.pool.num_free} private={self.num_private_blocks} "
            f"evictable={self.tree.num_evictable_blocks} "
            f"protected={self.tree.num_protected_blocks}>"
        )

    @property
    def num_private_blocks(self) -> int:
        """Blocks in the hands of single Reqs."""
        in_tree = self.tree.num_evictable_blocks + self.tree.num_protected_blocks
        return self.pool.num_blocks - self.pool.num_free - in_tree

    @property
    def num_available_blocks(self) -> int:
        """Blocks that could be allocated now, by evicting if need be."""
        return self.pool.num_free + self.tree.num_evictable_blocks

    def num_blocks_for(self, num_tokens: int) -> int:
        """Return how many blocks hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def match(self, key: PackedIds, namespace: Namespace) -> PrefixMatch:
        """Return the longest cached prefix of `key`. Changes nothing. See `RadixTree`."""
        return self.tree.match_prefix(key, namespace)

    def acquire(
        self,
        match: PrefixMatch,
        num_tokens: int,
        *,
        reserve: int = 0,
        private_tail: PrivateTail | None = None,
    ) -> Acquired | None:
        """Take everything a Req needs for `num_tokens` tokens, or nothing.

        Whole matched blocks are shared; a partly matching block is copied into the Req's first
        private block, from the tree or, if that gives more, from `private_tail`. A tail that
        would make the difference between fitting and not fitting is given up.

        Args:
            match: Made since the tree last changed.
            num_tokens: Tokens the lease's table shall cover, more than the match.
            reserve: Blocks that must stay available afterwards.
        Returns: None if the blocks cannot be had; nothing has changed then.
        Mutates: tree (lock, split, evict) and pool.
        Complexity: O(depth + blocks).
        """
        tail_len = match.tail.num_tokens if match.tail else 0
        if private_tail is not None and private_tail.num_tokens <= tail_len:
            private_tail = None
        keep_tail = match.tail is not None and private_tail is None
        count = self.num_blocks_for(num_tokens) - match.matched_len // self.block_size
        if keep_tail and not self._could_allocate(match, count + reserve, keep_tail=True):
            keep_tail = False
        if not self._could_allocate(match, count + reserve, keep_tail=keep_tail):
            return None
        handle = self.tree.lock(match)
        lease = Lease(handle, self.tree.path_blocks(handle))
        if keep_tail and match.tail is not None:
            lease.tail_pin = self.tree.lock_tail(match.tail)
        if not self._allocate_into(lease, count):
            self.release(lease)
            return None
        tail = match.tail if keep_tail else private_tail
        if tail is None:
            return Acquired(lease, match.matched_len, None)
        target = BlockId(lease.table[lease.num_shared])
        copy = BlockCopy(tail.block, target, tail.num_tokens)
        return Acquired(lease, match.matched_len + tail.num_tokens, copy)

    def extend(self, lease: Lease, num_tokens: int) -> bool:
        """Grow a lease's table until it covers `num_tokens` tokens, evicting if need be.

        Returns: False if the blocks cannot be had; nothing has changed then.
        Complexity: O(new blocks).
        """
        missing = self.num_blocks_for(num_tokens) - len(lease.table)
        if missing <= 0:
            return True
        return self.num_available_blocks >= missing and self._allocate_into(lease, missing)

    def commit(self, lease: Lease, key: PackedIds, num_tokens: int) -> None:
        """Publish the lease's full blocks among its first `num_tokens` tokens.

        Args:
            key: The Req's packed tokens.
            num_tokens: Tokens whose KV has really been written.
        Mutates: the tree owns the blocks now; the lease's table names the canonical ones.
        Complexity: O(newly published blocks).
        """
        full = num_tokens // self.block_size
        shared = lease.num_shared
        if full <= shared:
            return
        block_bytes = self.block_size * ID_BYTES
        fresh = [BlockId(block) for block in lease.table[shared:full]]
        handle = _alive(lease)
        result = self.tree.extend(handle, key[shared * block_bytes : full * block_bytes], fresh)
        lease.table[shared:full] = array("I", result.blocks)
        lease.num_shared = full
        self.pool.free(result.duplicates)

    def copy_made(self, lease: Lease) -> None:
        """Let go of the source of the lease's block copy: it has been read."""
        if lease.tail_pin is not None:
            self.tree.unlock(lease.tail_pin)
            lease.tail_pin = None

    def release(self, lease: Lease, hint: ReleaseHint = NO_HINT) -> None:
        """Give back everything a lease holds: the one way out for finish, abort and preemption.

        Args:
            hint: What is known of the published blocks' future.
        Mutates: the lease is dead afterwards.
        Raises:
            InvariantError: it was released before (4).
        Complexity: O(depth + private blocks).
        """
        handle = _alive(lease)
        self.copy_made(lease)
        private = lease.private_blocks
        lease.handle = None
        lease.table = array("I")
        lease.num_shared = 0
        self.tree.unlock(handle, hint)
        self.pool.free(private)

    def exclusive_start(self, lease: Lease) -> int:
        """Return the place in the lease's table from which on nobody else uses the blocks.

        Complexity: O(depth).
        """
        node = _alive(lease).node
        while node is not None and node.parent is not None and node.lock_ref == 1:
            node = node.parent
        return 0 if node is None else node.end_len // self.block_size

    def evict(self, count: int) -> int:
        """Move `count` blocks, or all evictable ones if fewer, from the tree to the free list.

        Returns: how many were freed.
        """
        freed = self.tree.evict(count)
        self.pool.free(freed)
        self.num_evicted_blocks += len(freed)
        return len(freed)

    def flush(self, namespace: Namespace | None = None) -> int:
        """Drop everything that no Req is using; live leases keep what they hold.

        Args:
            namespace: The only one to be flushed; all of them when None.
        Returns: how many blocks were freed.
        """
        freed = self.tree.flush(namespace)
        self.pool.free(freed)
        self.num_flushed_blocks += len(freed)
        return len(freed)

    def num_cached_blocks(self, namespace: Namespace | None = None) -> int:
        """Return the blocks in the tree, of one namespace or of all. Complexity: O(1)."""
        if namespace is None:
            return self.tree.num_evictable_blocks + self.tree.num_protected_blocks
        root = self.tree.root(namespace)
        return root.num_cached if root else 0

    def take_events(self) -> list[TreeEvent]:
        """Return what has happened to blocks since the last call; nothing while nobody listens."""
        if not self.tree.events:
            return []
        taken, self.tree.events = self.tree.events, []
        return taken

    def tick(self, now_s: float) -> None:
        """Hear the time, in seconds on any clock that only grows: holds and pins end by it."""
        self.tree.tick(now_s)
        self.pins.expire(now_s)

    def _could_allocate(self, match: PrefixMatch, count: int, *, keep_tail: bool) -> bool:
        beside = self.tree.num_evictable_beside(match, keep_tail=keep_tail)
        return self.pool.num_free + beside >= count

    def _allocate_into(self, lease: Lease, count: int) -> bool:
        shortage = count - self.pool.num_free
        if shortage > 0:
            self.evict(shortage)
        blocks = self.pool.allocate(count)
        if blocks is None:
            return False
        lease.table.extend(blocks)
        return True


class UnsharedCache(PrefixCache):
    """The same memory without reuse: nothing is ever found and nothing published.

    For `--no-prefix-cache`, so that the cost of a missing cache can be measured, and nothing else
    need know that there is none.
    """

    shares_prefixes = False

    def match(self, key: PackedIds, namespace: Namespace) -> PrefixMatch:
        """Return the empty match."""
        del key
        return self.tree.match_prefix(b"", namespace)

    def commit(self, lease: Lease, key: PackedIds, num_tokens: int) -> None:
        """Publish nothing."""


def _alive(lease: Lease) -> PrefixHandle:
    if lease.handle is None:
        raise InvariantError(4, "a released lease is used")
    return lease.handle
