"""Where a figure was measured: processor, cores, versions, commit."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path


def describe_machine() -> str:
    """Return one line that says what a figure depends on."""
    cores = len(os.sched_getaffinity(0))
    return (
        f"{_cpu_model()}, {cores} cores, Python {platform.python_version()}, "
        f"torch {version('torch')}, commit {_commit()}"
    )


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _commit() -> str:
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parent,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found.stdout.strip()
