"""How much two packed token runs have in common."""

from __future__ import annotations

from radixserve.types import ID_BYTES


def common_prefix_bytes(a: bytes | bytearray, b: bytes | bytearray, b_start: int = 0) -> int:
    """Return how many bytes `a` and `b[b_start:]` share from their beginnings.

    Halves the range instead of walking it, so nearly all the work is memory compares.
    Complexity: O(shared bytes + log n).
    """
    low, high = 0, min(len(a), len(b) - b_start)
    if a[:high] == b[b_start : b_start + high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[b_start + low : b_start + middle]:
            low = middle
        else:
            high = middle
    return low


def common_prefix_len(a: bytes | bytearray, b: bytes | bytearray) -> int:
    """Return how many leading *tokens* two packed runs share."""
    return common_prefix_bytes(a, b) // ID_BYTES
