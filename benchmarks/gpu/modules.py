"""Whether the kernels were built before, or are compiled now, on the GPU's time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.gpu import prebuild
from benchmarks.gpu.row import Row, SkippedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.gpu.rig import Rig


class ModulesSection:
    """How many of the modules lie where FlashInfer looks first."""

    name = "modules"

    def run(self, rig: Rig) -> Iterator[Row]:
        """Yield their number."""
        if rig.is_dry:
            raise SkippedError("scripts/gpu_prebuild --list tells the same without a GPU")
        specs = list(prebuild.module_specs(prebuild.parse_args([])))
        built = [spec for spec in specs if spec.aot_path.exists()]
        missing = len(specs) - len(built)
        note = f"{missing} may be compiled now, minutes each" if missing else "nothing is compiled"
        what = f"modules of {len(specs)} that were built before"
        yield Row(what=what, value=len(built), note=note)
