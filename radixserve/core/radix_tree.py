"""A radix tree from token sequences to the KV blocks that hold them.

    block_size 2; each node is a run of whole blocks, written tokens -> blocks

    root ("", "", "")
     `- a b c d -> 7 3          one node, two blocks
         |- e f -> 9            children differ within their first block ...
         `- e g -> 4            ... here only in its second token

    match  a b c d e g x   ->  whole blocks 7 3 4, nothing of a tail
    match  a b c d e h x   ->  whole blocks 7 3, tail: 1 token of block 9 (or 4)
    match  a b c x         ->  whole block 7, tail: 1 token of block 3

A *tail* is the part of a block beyond the last whole one that the tokens still agree with; its KV
can be copied to a fresh block. The tail's block is a neighbour of the insertion point among the
sorted children, or the next block of the node in which the match ends.

Locking a match splits the node it ends in, so that a handle always stands at the end of a node:

    lock a b               root `- a b -> 7  (lock_ref 1)
                                 `- c d -> 3
                                     |- e f -> 9
                                     `- e g -> 4

The lower part keeps the node's identity, so handles at or below it stay right.

Source: RadixAttention (Zheng et al., SGLang, arXiv:2312.07104, section 3); the trim of a leaf's
tail and the logical clock follow Hugging Face TGI's radix trie.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, cast
from zlib import crc32

from radixserve.core.children import Children
from radixserve.core.common_prefix import common_prefix_bytes
from radixserve.core.eviction import NO_HINT, EvictionIndex, LruIndex
from radixserve.core.eviction.hints import COLD, Use
from radixserve.core.node import Node
from radixserve.core.node_walks import blocks_down_to, nodes_below, num_unlocked_on
from radixserve.core.path_hints import take_hint
from radixserve.core.prefix_match import InsertResult, PrefixHandle, PrefixMatch, TailMatch
from radixserve.core.tree_events import Cleared, Removed, stored_below
from radixserve.errors import InvariantError
from radixserve.types import ID_BYTES, BlockId

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from radixserve.core.eviction import ReleaseHint
    from radixserve.core.tree_events import TreeEvent
    from radixserve.types import Namespace, PackedIds


class RadixTree:
    """Tokens -> blocks, with locks and an eviction order. Owns the blocks that were inserted.

    Args:
        block_size: Tokens a block.
        make_index: The eviction order; least recently used by default.
    """

    def __init__(self, block_size: int, make_index: Callable[[], EvictionIndex] = LruIndex) -> None:
        self.block_size = block_size
        self.evictable = make_index()
        self.num_evictable_blocks = 0
        self.num_protected_blocks = 0
        self.version = 0
        """Grows whenever a match made before may no longer hold."""
        self.now_s = 0.0
        """As of the last `tick`."""
        self.events: list[TreeEvent] | None = None
        """What happens to blocks is appended here; None while nobody listens."""
        self.pinned_gone: Callable[[Node], None] | None = None
        """Told of a pinned node that is given up: see `pins`."""
        self._block_bytes = block_size * ID_BYTES
        self._roots: dict[Namespace, Node] = {}
        self._handles: set[PrefixHandle] = set()
        self._clock = 0
        self._serial = 0

    def __repr__(self) -> str:
        return (
            f"<RadixTree evictable={self.num_evictable_blocks} "
            f"protected={self.num_protected_blocks} leaves={len(self.evictable)}>"
        )

    # -- queries: change nothing ---------------------------------------------------------------

    def match_prefix(self, key: PackedIds, namespace: Namespace) -> PrefixMatch:
        """Return the longest cached prefix of `key`, of at most `len(key) - 1` tokens.

        One token is always left over, so that there is a row to compute and to sample from.

        Args:
            key: Packed tokens.
        Mutates: nothing: no split, no touch, no lock.
        Complexity: O(matched bytes) in memory compares, O(log children) for the tail.
        """
        limit = max(0, len(key) - ID_BYTES)
        node = self._roots.get(namespace)
        if node is None:
            return PrefixMatch(namespace, None, 0, 0, None, self.version)
        offset = 0
        while (child := self._child_at(node, key, offset, limit)) is not None:
            end = offset + len(child.key)
            if end > limit or not key.startswith(child.key, offset):
                return self._match_inside(child, key[:limit], offset)
            node, offset = child, end
        tail = self._tail_below(node, key[offset : min(offset + self._block_bytes, limit)])
        return PrefixMatch(
            namespace, node, len(node.blocks), offset // ID_BYTES, tail, self.version
        )

    def path_blocks(self, handle: PrefixHandle) -> array[int]:
        """Return the blocks from the root to the handle's end. Complexity: O(blocks)."""
        return blocks_down_to(handle.node)

    def num_evictable_beside(self, match: PrefixMatch, *, keep_tail: bool) -> int:
        """Return the blocks that could be evicted once `match` were locked.

        Args:
            keep_tail: Whether the tail's node is to be locked as well.
        Complexity: O(depth).
        """
        return self.num_evictable_blocks - num_unlocked_on(match, keep_tail=keep_tail)

    def nodes(self) -> Iterator[Node]:
        """All nodes, roots included, parents before children. Complexity: O(nodes)."""
        for root in self._roots.values():
            yield root
            yield from nodes_below(root)

    def roots(self) -> Iterator[Node]:
        """The root of each namespace that holds anything, the oldest first."""
        return iter(self._roots.values())

    def root(self, namespace: Namespace) -> Node | None:
        """Return the root of a namespace; None if nothing of it is cached."""
        return self._roots.get(namespace)

    @property
    def clock(self) -> int:
        """Counts uses: `Node.last_access` is on it."""
        return self._clock

    def handles(self) -> Iterator[PrefixHandle]:
        """All the live handles, in no order."""
        return iter(self._handles)

    # -- locks ---------------------------------------------------------------------------------

    def lock(self, match: PrefixMatch) -> PrefixHandle:
        """Pin the whole blocks of `match` until `unlock`.

        Mutates: splits the node in which the match ends, touches and locks the path.
        Raises:
            InvariantError: the tree changed since the match was made (0).
        Complexity: O(depth).
        """
        self._check_fresh(match)
        node = match.node
        if node is None:
            node = self._new_root(match.namespace)
        elif match.node_blocks < len(node.blocks):
            node = self._split(node, match.node_blocks)
        return self._lock_node(node)

    def lock_tail(self, tail: TailMatch) -> PrefixHandle:
        """Pin the node that holds a tail's block, without a split. Complexity: O(depth)."""
        return self._lock_node(tail.node)

    def unlock(self, handle: PrefixHandle, hint: ReleaseHint = NO_HINT) -> None:
        """Give a lock back; its path counts as used just now.

        Args:
            hint: What is known of the path's future. It orders the eviction, and no more.
        Raises:
            InvariantError: the handle was given back before (4).
        Complexity: O(depth).
        """
        end = handle.node
        if end is None:
            raise InvariantError(4, "a prefix handle is unlocked twice")
        handle.node = None
        self._handles.remove(handle)
        self._clock = clock = self._clock + 1
        use = Use(hint.ending)
        node: Node | None = end
        while node is not None:
            node.last_access = clock
            node.hits += 1
            node.use = use
            if node.hold is COLD:
                node.hold = None
            node.lock_ref -= 1
            if node.lock_ref == 0:
                self.num_protected_blocks -= len(node.blocks)
                self.num_evictable_blocks += len(node.blocks)
            use.turn += 1
            node = node.parent
        use.turn += end.hits - 2  # neither the root nor this use
        if hint is not NO_HINT:
            take_hint(end, hint, now_s=self.now_s, block_size=self.block_size, split=self._split)
        self.evictable.used(end)
        self._settle_leaf(end)

    def tick(self, now_s: float) -> None:
        """Tell the eviction order the time, in seconds on any clock that only grows."""
        self.now_s = now_s
        self.evictable.tick(now_s)

    # -- publishing ----------------------------------------------------------------------------

    def insert(
        self,
        key: PackedIds,
        blocks: Sequence[BlockId],
        namespace: Namespace,
        hint: ReleaseHint = NO_HINT,
    ) -> InsertResult:
        """Publish whole blocks from the root on. See `extend` and `unlock`.

        Mutates: the tree, which owns the blocks that are not returned as duplicates.
        Complexity: O(bytes).
        """
        root = self._roots.get(namespace) or self._new_root(namespace)
        handle = self._lock_node(root)
        try:
            return self.extend(handle, key, blocks)
        finally:
            self.unlock(handle, hint)

    def extend(
        self, handle: PrefixHandle, key: PackedIds, blocks: Sequence[BlockId]
    ) -> InsertResult:
        """Publish the whole blocks that follow the handle's end, and move the handle to theirs.

        Spans that somebody published first keep their blocks: the caller must take over
        `result.blocks` before it frees `result.duplicates`.

        Args:
            key: Packed tokens of exactly `len(blocks)` blocks.
        Mutates: the tree and the handle.
        Raises:
            InvariantError: lengths disagree (3); the handle is dead (4).
        Complexity: O(len(key)), independent of what lies above the handle.
        """
        if len(key) != len(blocks) * self._block_bytes:
            raise InvariantError(3, f"{len(key)} bytes of tokens for {len(blocks)} blocks")
        if handle.node is None:
            raise InvariantError(4, "a dead prefix handle is extended")
        self.version += 1
        canonical, done = self._descend(handle, key)
        duplicates = list(blocks[:done])
        if done < len(blocks):
            fresh = list(blocks[done:])
            self._append(handle, key[done * self._block_bytes :], array("I", fresh))
            canonical.extend(fresh)
        return InsertResult(canonical, duplicates)

    # -- eviction ------------------------------------------------------------------------------

    def evict(self, count: int) -> list[BlockId]:
        """Give up `count` blocks, or all that are evictable if they are fewer.

        The unlocked leaf that the eviction order names goes first; a leaf that is longer than
        needed loses its tail only; a parent whose last child went becomes a candidate itself.

        Returns: the freed blocks, which nobody owns any more.
        Complexity: O(leaves given up * log n): never a scan.
        """
        freed: list[int] = []
        while len(freed) < count and (leaf := self.evictable.first()) is not None:
            surplus = len(leaf.blocks) - (count - len(freed))
            if surplus > 0:
                freed.extend(self._trim(leaf, surplus))
            else:
                self.evictable.pop()
                freed.extend(leaf.blocks)
                self._unlink(leaf)
        if freed:
            self._blocks_gone(freed)
        return cast(list[BlockId], freed)

    def flush(self, namespace: Namespace | None = None) -> list[BlockId]:
        """Give up all blocks that nobody is using, those that are held or pinned included.

        Live handles keep their paths: a locked node stays, with all that is above it.

        Args:
            namespace: The only one to be flushed; all of them when None.
        Returns: the freed blocks, which nobody owns any more.
        Complexity: O(nodes of the namespace * log n).
        """
        roots = list(self._roots.values()) if namespace is None else [self.root(namespace)]
        unlocked = [
            node for root in roots if root for node in nodes_below(root) if not node.lock_ref
        ]
        freed: list[int] = []
        for node in reversed(unlocked):
            self.evictable.evicted(node)
            freed.extend(node.blocks)
            self._unlink(node)
        if freed:
            self._blocks_gone(freed)
        return cast(list[BlockId], freed)

    # -- inside --------------------------------------------------------------------------------

    def _child_at(self, node: Node, key: PackedIds, offset: int, limit: int) -> Node | None:
        end = offset + self._block_bytes
        if node.children is None or end > limit:
            return None
        return node.children.exact(key[offset:end])

    def _match_inside(self, node: Node, key: PackedIds, offset: int) -> PrefixMatch:
        """The match ends within `node`, after at least one of its blocks."""
        shared = common_prefix_bytes(node.key, key, offset) // ID_BYTES
        node_blocks, tail_len = divmod(shared, self.block_size)
        tail = None
        if tail_len:
            tail = TailMatch(node, BlockId(node.blocks[node_blocks]), tail_len)
        matched_len = offset // ID_BYTES + node_blocks * self.block_size
        return PrefixMatch(node.namespace, node, node_blocks, matched_len, tail, self.version)

    def _tail_below(self, node: Node, part: PackedIds) -> TailMatch | None:
        if node.children is None or not part:
            return None
        child, num_tokens = node.children.longest_partial(part)
        if child is None:
            return None
        # A whole block in common would have been an exact child; what `limit` cut off is a tail.
        return TailMatch(child, BlockId(child.blocks[0]), num_tokens)

    def _check_fresh(self, match: PrefixMatch) -> None:
        if match.version != self.version:
            raise InvariantError(0, "a match is locked after the tree has changed")

    def _new_root(self, namespace: Namespace) -> Node:
        root = Node(
            namespace=namespace, parent=None, key=b"", blocks=array("I"), serial=self._next_serial()
        )
        self._roots[namespace] = root
        self.version += 1
        return root

    def _next_serial(self) -> int:
        self._serial += 1
        return self._serial

    def _lock_node(self, end: Node) -> PrefixHandle:
        if end.lock_ref == 0 and end.children is None and not end.is_root:
            self.evictable.remove(end)
        self._clock += 1
        node: Node | None = end
        while node is not None:
            node.last_access = self._clock
            if node.lock_ref == 0:
                self.num_evictable_blocks -= len(node.blocks)
                self.num_protected_blocks += len(node.blocks)
            node.lock_ref += 1
            node = node.parent
        handle = PrefixHandle(end)
        self._handles.add(handle)
        return handle

    def _split(self, node: Node, num_blocks: int) -> Node:
        """Put the first `num_blocks` of `node` into a new parent of it, and return that."""
        assert node.parent is not None
        assert node.parent.children is not None
        cut = num_blocks * self._block_bytes
        upper = Node(
            namespace=node.namespace,
            parent=node.parent,
            key=node.key[:cut],
            blocks=node.blocks[:num_blocks],
            serial=self._next_serial(),
        )
        upper.lock_ref = node.lock_ref
        upper.last_access = node.last_access
        upper.born_at, upper.hits, upper.use = node.born_at, node.hits, node.use
        upper.hold = COLD if node.hold is COLD else None
        upper.num_branches = 1
        upper.digest = node.digest
        node.parent.children.put(upper.first_block(self._block_bytes), upper)
        node.parent = upper
        node.key = node.key[cut:]
        node.blocks = node.blocks[num_blocks:]
        upper.children = Children()
        upper.children.put(node.first_block(self._block_bytes), node)
        self._set_digest(node)
        self.version += 1
        self.evictable.split(upper, node)
        return upper

    def _descend(self, handle: PrefixHandle, key: PackedIds) -> tuple[list[BlockId], int]:
        """Move the handle down over the leading blocks of `key` that the tree has already."""
        canonical: list[int] = []
        node = handle.node
        assert node is not None
        offset = 0
        while (child := self._child_at(node, key, offset, len(key))) is not None:
            shared = common_prefix_bytes(child.key, key, offset) // self._block_bytes
            if shared < len(child.blocks):
                child = self._split(child, shared)
            self._step_down(handle, child)
            canonical.extend(child.blocks)
            node, offset = child, offset + len(child.key)
        return cast(list[BlockId], canonical), len(canonical)

    def _step_down(self, handle: PrefixHandle, child: Node) -> None:
        """Move a handle from a node to a child of it: only the child gains a lock."""
        if child.lock_ref == 0:
            if child.children is None:
                self.evictable.remove(child)
            self.num_evictable_blocks -= len(child.blocks)
            self.num_protected_blocks += len(child.blocks)
        child.lock_ref += 1
        handle.node = child

    def _append(self, handle: PrefixHandle, key: PackedIds, blocks: array[int]) -> None:
        """Add blocks that the tree does not have below the handle's end."""
        node = handle.node
        assert node is not None
        self.num_protected_blocks += len(blocks)
        node.root.num_cached += len(blocks)
        if self.events is not None:
            self.events.append(stored_below(node, key, blocks))
        is_pinned = node.hold is not None and node.hold.is_pinned
        if node.children is None and node.lock_ref == 1 and not node.is_root and not is_pinned:
            # Nobody else stands here, so a decoding Req grows one node instead of a long chain.
            node.key += key
            node.blocks.extend(blocks)
            node.end_len += len(key) // ID_BYTES
            return
        child = Node(
            namespace=node.namespace,
            parent=node,
            key=key,
            blocks=blocks,
            serial=self._next_serial(),
        )
        child.lock_ref = 1
        child.born_at = self._clock
        if node.children is None:
            node.children = Children()
        node.children.put(child.first_block(self._block_bytes), child)
        node.num_branches += 1
        handle.node = child
        self._set_digest(child)
        self.evictable.born(child)

    def _set_digest(self, node: Node) -> None:
        if self.evictable.needs_digests:
            assert node.parent is not None
            node.digest = crc32(node.parent.key, node.parent.digest)

    def _settle_leaf(self, node: Node) -> None:
        """File a node that may have become an unlocked leaf, or drop an empty root."""
        if node.lock_ref > 0 or node.children is not None:
            return
        if node.is_root:
            del self._roots[node.namespace]
            self.version += 1
        else:
            self.evictable.add(node)

    def _trim(self, leaf: Node, num_blocks: int) -> array[int]:
        """Keep the first `num_blocks` of a leaf and return the others."""
        freed = leaf.blocks[num_blocks:]
        del leaf.blocks[num_blocks:]
        leaf.key = leaf.key[: num_blocks * self._block_bytes]
        leaf.end_len -= len(freed) * self.block_size
        leaf.root.num_cached -= len(freed)
        return freed

    def _unlink(self, leaf: Node) -> None:
        if leaf.hold is not None and leaf.hold.is_pinned and self.pinned_gone is not None:
            self.pinned_gone(leaf)
        leaf.root.num_cached -= len(leaf.blocks)
        parent = leaf.parent
        assert parent is not None
        assert parent.children is not None
        parent.children.remove(leaf.first_block(self._block_bytes))
        if not parent.children:
            parent.children = None
            self._settle_leaf(parent)

    def _blocks_gone(self, freed: list[int]) -> None:
        self.version += 1
        self.num_evictable_blocks -= len(freed)
        if self.events is not None:
            is_empty = not self.num_evictable_blocks and not self.num_protected_blocks
            self.events.append(Cleared() if is_empty else Removed(tuple(freed)))
