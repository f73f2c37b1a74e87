"""Follow whichever of some policies does best lately, by trying them all on a sample.

    path used --> in the sample? --> a shadow cache for each policy counts what it would hit
                                          |
    real leaves, in every policy's order  |  every so often: is another one clearly better?
    first() = first of the one followed <-'

A sample is a share of the sessions, not of the uses: shadows are as much smaller as they see fewer
sessions, so that they keep a path as long as the real cache would. A small cache is sampled whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

from radixserve.core.eviction.hints import Ending, ReleaseHint
from radixserve.core.eviction.index import EvictionIndex
from radixserve.core.eviction.shadow_cache import ShadowCache
from radixserve.errors import InvariantError
from radixserve.types import ID_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from radixserve.core.node import Node

MAX_SHADOW_BLOCKS = 4096
"""Blocks of token ids that a shadow may hold."""

HALF_LIFE = 400
"""Sampled uses after which a hit counts half."""

MARGIN = 0.02
"""A policy is followed when it hits so much more, as a share of all sampled tokens."""

DECIDE_EVERY = 16
"""Sampled uses between decisions."""

CROWD_SHARE = 1 / 8
"""A node that so many of all uses pass is a prefix of many sessions, and tells none apart."""

MAX_OWED = 256
"""Evicted leaves of which the policies that are not followed hear at once."""

_FADE = 0.5 ** (1 / HALF_LIFE)
_SCRAMBLE = 2_654_435_761
_HASHES = 1 << 32
_HINTS = {ending: ReleaseHint(ending=ending) for ending in Ending}


class AdaptiveIndex(EvictionIndex):
    """The order of the policy whose shadow hit most lately; at first that of the first one.

    Args:
        policies: Name -> maker of an index.
        num_blocks: Blocks of the real cache.
        block_size: Tokens a block.
        max_shadow_blocks: Blocks of token ids that each shadow may hold.
    """

    needs_digests = True

    def __init__(
        self,
        policies: Mapping[str, Callable[[], EvictionIndex]],
        *,
        num_blocks: int,
        block_size: int,
        max_shadow_blocks: int = MAX_SHADOW_BLOCKS,
    ) -> None:
        self._names = list(policies)
        self._indexes = [make() for make in policies.values()]
        self._block_bytes = block_size * ID_BYTES
        share = min(1.0, max_shadow_blocks / num_blocks)
        self._sampled_below = int(share * _HASHES)
        shadow_blocks = max(1, int(share * num_blocks))
        self._shadows = [ShadowCache(shadow_blocks, block_size, make) for make in policies.values()]
        self._hits = [0.0] * len(policies)
        self._num_tokens = 0.0
        self.num_samples = 0
        """Uses on which the policies were tried."""
        self._followed = 0
        self._owed: list[Node] = []
        """Leaves that the followed policy has given up and the others have still."""

    def __repr__(self) -> str:
        return f"<AdaptiveIndex follows {self.followed}, {len(self)} leaves>"

    @property
    def followed(self) -> str:
        """The name of the policy that decides at present."""
        return self._names[self._followed]

    # -- the set -------------------------------------------------------------------------------

    def add(self, leaf: Node) -> None:
        """Take in an unlocked leaf, in every order."""
        for index in self._indexes:
            index.add(leaf)

    def remove(self, leaf: Node) -> None:
        """Forget a leaf that is used again, in every order."""
        for index in self._indexes:
            index.remove(leaf)

    def first(self) -> Node | None:
        """Return the first leaf of the policy that is followed."""
        return self._indexes[self._followed].first()

    def pop(self) -> Node:
        """Take out the leaf that `first` returns. Complexity: that of the policy followed.

        The others hear of it when the next use ends: whoever evicts waits for memory.
        """
        leaf = self._indexes[self._followed].pop()
        self._owed.append(leaf)
        if len(self._owed) >= MAX_OWED:
            self._settle()
        return leaf

    def evicted(self, leaf: Node) -> None:
        """Forget a leaf that is given up, in every order."""
        for index in self._indexes:
            index.evicted(leaf)

    def __iter__(self) -> Iterator[Node]:
        return iter(self._indexes[self._followed])

    def __len__(self) -> int:
        return len(self._indexes[self._followed])

    def check(self) -> None:
        """Every policy is in order and holds the same leaves, but for those that are owed."""
        for index in self._indexes:
            index.check()
        leaves = [set(index) - set(self._owed) for index in self._indexes]
        if any(others != set(self) for others in leaves):
            raise InvariantError(5, f"the policies hold different leaves: {self._indexes}")

    # -- the news ------------------------------------------------------------------------------

    def born(self, node: Node) -> None:
        """Pass it on."""
        for index in self._indexes:
            index.born(node)

    def split(self, upper: Node, lower: Node) -> None:
        """Pass it on."""
        for index in self._indexes:
            index.split(upper, lower)

    def tick(self, now_s: float) -> None:
        """Pass it on."""
        for index in self._indexes:
            index.tick(now_s)

    def used(self, end: Node) -> None:
        """Pass it on, and try all the policies on it if it is in the sample.

        Complexity: O(depth), and O(path's bytes) for one in the sample.
        """
        self._settle()
        for index in self._indexes:
            index.used(end)
        path = _path(end)
        if len(path) > 1 and self._is_sampled(path):
            self._try_all(path)

    # -- inside --------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Tell the other policies what is gone."""
        for place, index in enumerate(self._indexes):
            if place != self._followed:
                for leaf in self._owed:
                    index.evicted(leaf)
        self._owed.clear()

    def _is_sampled(self, path: list[Node]) -> bool:
        """Whether the session that a path belongs to, as far as can be seen, is in the sample."""
        if self._sampled_below >= _HASHES:
            return True
        crowd = path[0].hits * CROWD_SHARE
        own = next((node for node in path[1:] if node.hits < crowd), path[-1])
        digest = crc32(own.first_block(self._block_bytes), own.digest)
        return digest * _SCRAMBLE % _HASHES < self._sampled_below

    def _try_all(self, path: list[Node]) -> None:
        key = b"".join([node.key for node in path])
        end = path[-1]
        hint = _HINTS[end.use.ending]
        for place, shadow in enumerate(self._shadows):
            hits = shadow.use(key, end.namespace, hint)
            self._hits[place] = self._hits[place] * _FADE + hits
        self._num_tokens = self._num_tokens * _FADE + len(key) // ID_BYTES
        self.num_samples += 1
        if self.num_samples % DECIDE_EVERY == 0:
            self._decide()

    def _decide(self) -> None:
        best = max(range(len(self._hits)), key=self._hits.__getitem__)
        lead = self._hits[best] - self._hits[self._followed]
        if lead > MARGIN * self._num_tokens:
            self._followed = best


def _path(end: Node) -> list[Node]:
    """The nodes from the root to `end`."""
    path = []
    node: Node | None = end
    while node is not None:
        path.append(node)
        node = node.parent
    path.reverse()
    return path
