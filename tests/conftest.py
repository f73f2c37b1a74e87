"""Settings of the whole test suite: how many examples hypothesis tries.

    HYPOTHESIS_PROFILE=dev    8 examples, machines of 20 steps: the default at a desk
    HYPOTHESIS_PROFILE=ci     200 examples of 50 steps, the same in every run; default if CI=true
    HYPOTHESIS_PROFILE=soak   5,000 examples: before a release, or after a change in the core

A soak takes minutes for one test: give it `--timeout=0`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    import pytest

# The first call of a test pays for imports, and other work shares the machine: no time limits.
settings.register_profile(
    "dev",
    max_examples=8,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "ci",
    settings.get_profile("dev"),
    max_examples=200,
    stateful_step_count=50,
    derandomize=True,
)
settings.register_profile(
    "soak", settings.get_profile("dev"), max_examples=5000, stateful_step_count=50
)
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") == "true" else "dev")
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave slow tests out of a run that does not choose by marker itself, and say so."""
    if config.getoption("markexpr"):
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    config.hook.pytest_deselected(items=slow)
    items[:] = [item for item in items if item not in slow]
