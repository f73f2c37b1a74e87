"""Which unlocked leaf of the tree goes first: one policy a file, behind `EvictionIndex`.

The tree adds a node when it becomes an unlocked leaf and removes it when that ends, so an index
holds exactly the evictable leaves (invariant 5) and evicting never scans. Whatever the order, all
of them can be evicted: a policy decides who goes first, never who stays.

`names.find_eviction_policy` makes a policy from its name.
"""

from radixserve.core.eviction.hints import NO_HINT, Ending, Keep, ReleaseHint
from radixserve.core.eviction.index import EvictionIndex
from radixserve.core.eviction.lru import LruIndex

__all__ = ["NO_HINT", "Ending", "EvictionIndex", "Keep", "LruIndex", "ReleaseHint"]
