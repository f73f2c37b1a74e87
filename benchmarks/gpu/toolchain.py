"""Where nvcc is: the system's, or the one that Python packages carry."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

PACKAGES = (
    "nvidia-cuda-nvcc>=13.0,<13.1",
    "nvidia-cuda-crt>=13.0,<13.1",
    "nvidia-cuda-cccl>=13.0,<13.1",
    "nvidia-nvvm>=13.0,<13.1",
    "nvidia-cuda-runtime>=13.0,<13.1",
)
"""What pip must install for an nvcc where there is no CUDA toolkit."""


class ToolchainError(Exception):
    """There is no nvcc; says how to get one."""


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A CUDA toolkit, and the link flags that it needs besides."""

    home: Path
    link_flags: str = ""

    @classmethod
    def find(cls, links: Path, *, site_packages: Path | None = None) -> Toolchain:
        """Return the system's toolkit, or that of Python packages.

        Args:
            links: A folder for the two libraries that those packages lack under the linker's names.
            site_packages: Where packages are installed; this interpreter's when None.
        Raises:
            ToolchainError: there is neither.
        Mutates: `links`, if the packages' is taken.
        """
        if home := _system_home(os.environ):
            return cls(home)
        packages = site_packages or Path(sysconfig.get_paths()["purelib"])
        home = packages / "nvidia" / "cu13"
        if not (home / "bin" / "nvcc").is_file():
            raise ToolchainError(f"no nvcc was found; pip install {' '.join(map(repr, PACKAGES))}")
        _link_libraries(home, links)
        return cls(home, f"-L{links}")

    def environment(self) -> dict[str, str]:
        """Return what FlashInfer's build must find in its environment."""
        flags = " ".join(
            filter(None, (os.environ.get("FLASHINFER_EXTRA_LDFLAGS"), self.link_flags))
        )
        settings = {"CUDA_HOME": str(self.home)}
        return {**settings, "FLASHINFER_EXTRA_LDFLAGS": flags} if flags else settings


def _system_home(environment: Mapping[str, str]) -> Path | None:
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if value := environment.get(name):
            return Path(value)
    nvcc = shutil.which("nvcc")
    return None if nvcc is None else Path(nvcc).resolve().parents[1]


def _link_libraries(home: Path, links: Path) -> None:
    """Give the linker `libcudart.so`, and a `libcuda.so` in which there is nothing.

    The real one comes with the driver, which a machine that only builds does not have.
    """
    links.mkdir(parents=True, exist_ok=True)
    runtime = links / "libcudart.so"
    runtime.unlink(missing_ok=True)
    runtime.symlink_to(next(iter(sorted((home / "lib").glob("libcudart.so.*")))))
    compiler = os.environ.get("CC", "cc")
    name = "-Wl,-soname,libcuda.so.1"
    target = str(links / "libcuda.so")
    subprocess.run([compiler, "-shared", "-x", "c", "/dev/null", name, "-o", target], check=True)
