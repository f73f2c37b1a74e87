from __future__ import annotations

import subprocess
import sys

import pytest

MODULES = ["radixserve.core.scheduler", "radixserve.core.invariants", "tests.kit.builders"]


@pytest.mark.parametrize("module", MODULES)
def test_importing_the_core_loads_nothing_that_it_must_not_know(module: str) -> None:
    script = f"import sys, {module}; print(*sys.modules)"

    loaded = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    ).stdout.split()

    assert module in loaded
    assert not {"torch", "numpy", "asyncio", "transformers", "logging"} & set(loaded)
