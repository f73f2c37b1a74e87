"""How soon a path is used again: counts by age, and what they make a leaf worth.

Ages are on the tree's logical clock and fall into buckets that double:

    age      0   1   2 3   4 .. 7   8 .. 15   ...
    bucket   0   1   2     3        4         ...

    risk[b]      idle paths that reached bucket b
    returns[b]   those of them that were used again while in it
    hazard[b]    returns / risk: the chance to be used again in b, for a path that reached it

Counting by survivors makes paths count that were forgotten or are idle still (Kaplan and Meier).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

NUM_BUCKETS = 22
"""The last one has no end: two million events of age."""

PRIOR_RISK = 4.0
"""How many paths' worth of evidence the average of all classes is, for one that is new."""

FADE_EVERY, FADE_BY = 64, 0.9
"""After so many ends, old counts weigh so much: half after some 400 ends."""


def bucket_of(age: int) -> int:
    """Return the bucket of an age in clock ticks."""
    return min(max(0, age).bit_length(), NUM_BUCKETS - 1)


def end_of(bucket: int) -> int:
    """Return the first age beyond a bucket."""
    return 1 << bucket


WIDTHS = [1.0] + [float(end_of(bucket) - end_of(bucket - 1)) for bucket in range(1, NUM_BUCKETS)]


def hit_densities(hazards: Sequence[float]) -> list[float]:
    """Return, for each age bucket, the returns to be had for each tick of keeping.

    For the best of all times to give up: keeping a leaf through a bucket in which few come back
    can be worth it if many do in the next one. This is the Gittins index of a chain; merging a
    bucket with better ones behind it finds that time.

    Args:
        hazards: Chance of a return in each bucket, above 0 and below 1.
    Complexity: O(buckets).
    Source: hit density as a rank is LHD's (Beckmann et al., NSDI 2018).
    """
    densities = [0.0] * len(hazards)
    stretches: list[tuple[float, float, float]] = []
    for bucket in range(len(hazards) - 1, -1, -1):
        chance = hazards[bucket]
        time, survivors = WIDTHS[bucket] * (1 - chance / 2), 1 - chance
        while stretches and stretches[-1][0] * time > chance * stretches[-1][1]:
            more_chance, more_time, more_survivors = stretches.pop()
            chance += survivors * more_chance
            time += survivors * more_time
            survivors *= more_survivors
        stretches.append((chance, time, survivors))
        densities[bucket] = chance / time
    return densities


class ReuseStats:
    """Counts of returns by age, of one class of paths or of all."""

    __slots__ = ("num_ends", "returns", "risk")

    def __init__(self) -> None:
        self.risk = [0.0] * NUM_BUCKETS
        self.returns = [0.0] * NUM_BUCKETS
        self.num_ends = 0

    def ended(self, bucket: int, *, by_return: bool) -> None:
        """Count the end of an idle time, and let old counts fade."""
        if by_return:
            self.returns[bucket] += 1
        self.num_ends += 1
        if self.num_ends % FADE_EVERY == 0:
            self.risk = [count * FADE_BY for count in self.risk]
            self.returns = [count * FADE_BY for count in self.returns]

    def hazards(self) -> list[float]:
        """The chance of a return in each bucket, as far as is known."""
        pairs = zip(self.returns, self.risk, strict=True)
        return [(returns + 0.6) / (max(returns, risk) + 2) for returns, risk in pairs]

    def hazards_beside(self, others: Sequence[float]) -> list[float]:
        """The chance of a return in each bucket; `others` where little has been seen."""
        rows = zip(self.returns, self.risk, others, strict=True)
        return [
            (returns + PRIOR_RISK * prior) / (max(returns, risk) + PRIOR_RISK)
            for returns, risk, prior in rows
        ]
