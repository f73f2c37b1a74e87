"""JSON values that are equal but for the last digits of their numbers."""

from __future__ import annotations

from typing import Any

import pytest

LOGPROB_TOLERANCE = 1e-5
"""In float32: how the prompt was cut into chunks changes the order of sums, and no more."""


def assert_nearly_equal(found: Any, expected: Any, *, path: str = "") -> None:
    """Compare two JSON values; numbers with a fraction may differ by `LOGPROB_TOLERANCE`."""
    if isinstance(expected, dict):
        assert list(found) == list(expected), path
        for name, value in expected.items():
            assert_nearly_equal(found[name], value, path=f"{path}.{name}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), path
        for place, value in enumerate(expected):
            assert_nearly_equal(found[place], value, path=f"{path}[{place}]")
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, abs=LOGPROB_TOLERANCE), path
    else:
        assert found == expected, path
