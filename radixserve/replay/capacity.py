"""Cache sizes as people write them: so many blocks, or a share of what a trace could fill."""

from __future__ import annotations

from fractions import Fraction

from radixserve.errors import ConfigError

PERCENT = "%"


def parse_capacity(text: str, num_unique_blocks: int) -> int:
    """Return a capacity in blocks, at least 1.

    Args:
        text: `17089`, or `10%` of the trace's distinct blocks, rounded down.
    Raises:
        ConfigError: it is neither, or not above 0.
    """
    try:
        if text.endswith(PERCENT):
            share = Fraction(text.removesuffix(PERCENT))
            capacity = max(1, int(num_unique_blocks * share / 100)) if share > 0 else 0
        else:
            capacity = int(text)
    except (ValueError, ZeroDivisionError):
        capacity = 0
    if capacity < 1:
        raise ConfigError(f"--blocks takes numbers from 1 on, or shares such as 5%; got {text!r}")
    return capacity
