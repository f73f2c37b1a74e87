"""Idle times under observation: of cached paths, and of some that were evicted meanwhile.

An idle time begins when a path's use ends. It ends when somebody uses the path again, be it cached
or be it published anew, or when it is forgotten. Only so many are remembered.

Ordered dicts, here and in `learned`: a plain one that loses its first entries over and over is
slow to find the first of the others.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from radixserve.core.eviction.reuse_stats import NUM_BUCKETS, ReuseStats, bucket_of, end_of

if TYPE_CHECKING:
    from collections.abc import Hashable

MAX_PERIODS = 16_384
"""Idle times that are remembered: a few MB."""


class Period:
    """One idle time."""

    __slots__ = ("bucket", "ghost", "group", "key", "since")

    def __init__(self, key: Hashable, group: Group, since: int, bucket: int) -> None:
        self.key = key
        self.group = group
        self.since = since
        """Clock when the use ended."""
        self.bucket = bucket
        self.ghost: int | None = None
        """Digest of the first evicted block of the path."""


class Group:
    """The idle times of one class, by age, and what has been learned from them."""

    __slots__ = ("by_bucket", "stats")

    def __init__(self) -> None:
        self.stats = ReuseStats()
        self.by_bucket: list[OrderedDict[Period, None]] = [
            OrderedDict() for _ in range(NUM_BUCKETS)
        ]

    def age(self, now: int, pooled: ReuseStats) -> None:
        """Move idle times on to the buckets that they have reached. Complexity: O(moved)."""
        for bucket, idle in enumerate(self.by_bucket[:-1]):
            if not idle:
                continue
            end = now - end_of(bucket)
            while idle and (period := next(iter(idle))).since <= end:
                del idle[period]
                self.enter(period, bucket + 1, pooled)

    def enter(self, period: Period, bucket: int, pooled: ReuseStats) -> None:
        """Put an idle time in a bucket and count it as one that got there."""
        period.bucket = bucket
        self.by_bucket[bucket][period] = None
        self.stats.risk[bucket] += 1
        pooled.risk[bucket] += 1


class IdlePeriods:
    """All the idle times that are remembered, by what is idle and by what was evicted of it.

    Args:
        limit: The oldest is forgotten when there are more.
    """

    def __init__(self, limit: int = MAX_PERIODS) -> None:
        self.pooled = ReuseStats()
        self._limit = limit
        self._periods: OrderedDict[Hashable, Period] = OrderedDict()
        self._ghosts: dict[int, Period] = {}

    def __len__(self) -> int:
        return len(self._periods)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._periods

    def begin(self, key: Hashable, group: Group, since: int, now: int) -> None:
        """Observe something that has been idle since `since`."""
        if key in self._periods:
            self.end(key, by_return=False)
        bucket = bucket_of(now - since)
        self._periods[key] = period = Period(key, group, since, bucket)
        group.enter(period, bucket, self.pooled)
        if len(self._periods) > self._limit:
            self.end(next(iter(self._periods)), by_return=False)

    def end(self, key: Hashable, *, by_return: bool) -> None:
        """Something is used again, or forgotten; unknown keys are ignored."""
        period = self._periods.pop(key, None)
        if period is None:
            return
        group = period.group
        del group.by_bucket[period.bucket][period]
        if period.ghost is not None:
            self._ghosts.pop(period.ghost, None)
        group.stats.ended(period.bucket, by_return=by_return)
        self.pooled.ended(period.bucket, by_return=by_return)

    def evicted(self, key: Hashable, digest: int) -> None:
        """Recognise a path by its first evicted block from now on."""
        period = self._periods.get(key)
        if period is None:
            return
        if period.ghost is not None:
            self._ghosts.pop(period.ghost, None)
        period.ghost = digest
        self._ghosts[digest] = period

    def published(self, digest: int) -> bool:
        """Hear of a new run that begins so; return whether it had been evicted before."""
        period = self._ghosts.pop(digest, None)
        if period is None:
            return False
        period.ghost = None
        self.end(period.key, by_return=True)
        return True
