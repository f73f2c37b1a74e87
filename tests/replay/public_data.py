"""Where the public traces are, for the tests that replay them; they are no part of the product."""

from __future__ import annotations

from pathlib import Path

import pytest

DATA = Path(__file__).parents[3] / "shared/data"


def public_file(name: str) -> Path:
    """Return a public data file, or skip the test that wants it."""
    path = DATA / name
    if not path.exists():
        pytest.skip(f"the public data is not there: {name}")
    return path
