"""The public names are exactly those listed, and importing them is cheap."""

from __future__ import annotations

import inspect
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import radixserve
from radixserve import config, errors

REPO = Path(__file__).parents[2]
HEAVY = ("torch", "transformers", "numpy", "tokenizers", "aiohttp", "pydantic", "rich")


def run_python(code: str) -> str:
    """Run `code` in a fresh interpreter and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=REPO, check=True
    )
    return done.stdout.strip()


@pytest.mark.parametrize("module", ["radixserve", "radixserve.core", "radixserve.cli.main"])
def test_importing_loads_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print([name for name in {HEAVY} if name in sys.modules])"
    assert run_python(code) == "[]"


def test_every_listed_name_can_be_had() -> None:
    for name in radixserve.__all__:
        assert getattr(radixserve, name) is not None


def test_the_list_is_sorted_and_has_no_double() -> None:
    assert radixserve.__all__ == sorted(set(radixserve.__all__))


def test_every_setting_and_every_error_is_listed() -> None:
    public = {
        name
        for module in (config, errors)
        for name, cls in inspect.getmembers(module, inspect.isclass)
        if cls.__module__ == module.__name__
    }
    assert public <= set(radixserve.__all__)


def test_nothing_public_is_left_out_of_the_list() -> None:
    public = {
        name
        for name, value in vars(radixserve).items()
        if not name.startswith("_") and inspect.isclass(value)
    }
    assert public <= set(radixserve.__all__)
    assert set(radixserve.__all__) <= set(dir(radixserve))


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Enginee'"):
        _ = radixserve.Enginee


def test_the_version_is_the_projects() -> None:
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    assert radixserve.__version__ == project["version"]
