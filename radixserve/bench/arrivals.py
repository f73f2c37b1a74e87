"""When sessions begin: all at once, or as a Poisson process."""

from __future__ import annotations

import math
import random
from itertools import accumulate

from radixserve.errors import ConfigError


def arrival_times(count: int, rate: float, *, seed: int) -> list[float]:
    """Return `count` times in seconds, ascending; the first is 0.

    Args:
        rate: Arrivals a second on average; infinite for all at once.

    Raises:
        ConfigError: the rate is not above 0.
    """
    if not rate > 0:
        raise ConfigError(f"a request rate must be above 0; got {rate}")
    if math.isinf(rate):
        return [0.0] * count
    rng = random.Random(f"{seed}/arrivals")
    gaps = [rng.expovariate(rate) for _ in range(count - 1)]
    return list(accumulate(gaps, initial=0.0))[:count]
