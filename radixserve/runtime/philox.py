"""Philox4x64-10: random bits that are a function of a key and a place, with no state between them.

In plain integers: a generator object of numpy's costs several times what one block of it does.
"""

from __future__ import annotations

WORD = 2**64 - 1
"""The largest 64-bit word, and the mask of one."""

_MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
_FIRST_STEP = 0x9E3779B97F4A7C15
_SECOND_STEP = 0xBB67AE8584CAA73B
_SECOND_KEYS = tuple(turn * _SECOND_STEP & WORD for turn in range(10))
"""The key's second word in each of the ten rounds: it starts at 0."""


def first_word(key: int, place: int) -> int:
    """Return the first 64 bits of a block: `np.random.Philox(key=key, counter=place).random_raw()`.

    Args:
        key: The stream, from 0 to 2**64 - 1.
        place: The block of it, from 0 to 2**64 - 1. Numpy counts on before its first block, and
            so does this.
    Complexity: ten rounds of two multiplications.
    Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011,
        section 3.3; constants of the authors' Random123 library.
    """
    m0, m1 = _MULTIPLIERS
    counter = place + 1
    x0, x1, x2, x3 = counter & WORD, counter >> 64, 0, 0
    for second_key in _SECOND_KEYS:
        even, odd = m0 * x0, m1 * x2
        x0, x1 = (odd >> 64) ^ x1 ^ key, odd & WORD
        x2, x3 = (even >> 64) ^ x3 ^ second_key, even & WORD
        key = (key + _FIRST_STEP) & WORD
    return x0
