"""The package's build: with a compiler, without one, and under sanitizers."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
PACKAGE = REPO / "radixserve"

TOOLS = ("scikit_build_core", "nanobind")
MISSING_TOOLS = [name for name in TOOLS if importlib.util.find_spec(name) is None]
VARIANTS = "avx2" if platform.machine() in {"x86_64", "AMD64"} else ""
"""Beside scalar: what is tested here, so that it does not take minutes."""

COMPILER = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")


def run(*command: str, **environment: str) -> str:
    """Run a command and return what it printed; fail with that if the command does."""
    done = subprocess.run(
        command,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


@pytest.mark.skipif(bool(MISSING_TOOLS), reason=f"building needs {', '.join(MISSING_TOOLS)}")
def test_without_a_compiler_the_wheel_has_everything_but_the_extension(tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(
        REPO, source, ignore=shutil.ignore_patterns(".*", "build", "tests", "_native*.so")
    )
    run(
        *(sys.executable, "-m", "pip", "wheel", str(source), "--wheel-dir", str(tmp_path)),
        *("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"),
        CXX="/nonexistent/c++",
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("radixserve/")}
    assert names == package_files()
    assert wheel.name.endswith("-py3-none-any.whl")


def package_files() -> set[str]:
    """Every file of the package that is installed, but the extension."""
    return {
        path.relative_to(REPO).as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file()
        and "__pycache__" not in path.parts
        and "csrc" not in path.parts
        and path.suffix != ".so"
    }


@pytest.mark.timeout(600)
@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
@pytest.mark.skipif(shutil.which("cmake") is None, reason="no cmake")
def test_sanitizers_find_nothing_in_kernels_on_random_shapes(tmp_path: Path) -> None:
    run(
        *("cmake", "-S", str(REPO / "cmake"), "-B", str(tmp_path)),
        *("-DRS_DRIVER=ON", "-DRS_SANITIZE=address,undefined", f"-DRS_VARIANTS={VARIANTS}"),
    )
    run("cmake", "--build", str(tmp_path), "--parallel")
    # Another library that is loaded first, such as an allocator, would refuse to start.
    out = run(str(tmp_path / "driver"), "30", LD_PRELOAD="")
    assert out.strip() == "driver: all done"
