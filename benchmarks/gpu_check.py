"""Everything that only a GPU can tell, in one run: is it right, and is it fast?

    python -m benchmarks.gpu_check                        about eight minutes on one NVIDIA GPU
    python -m benchmarks.gpu_check --sections conformance decode
    python -m benchmarks.gpu_check --dry-run              on a CPU: every section runs, small

Needs no network: the kernels should have been built before (`scripts/gpu_prebuild`), and the small
model's folder be there (`radixserve pull`; --model).

The exit code is 0 where every target is met, 1 where one is missed, 2 where there is no GPU.
"""

from __future__ import annotations

import argparse
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from benchmarks.gpu.budget import Budget
from benchmarks.gpu.cached_logits import CachedLogitsSection
from benchmarks.gpu.cascade_speed import CascadeSpeedSection
from benchmarks.gpu.conformance import ConformanceSection
from benchmarks.gpu.decode_speed import DecodeSpeedSection
from benchmarks.gpu.few_shot_served import FewShotSection
from benchmarks.gpu.greedy import GreedySection
from benchmarks.gpu.host_time import HostTimeSection
from benchmarks.gpu.layer_ops import LayerOpsSection
from benchmarks.gpu.limits import LimitsSection
from benchmarks.gpu.modules import ModulesSection
from benchmarks.gpu.prefill_speed import PrefillSpeedSection
from benchmarks.gpu.report import HEADER, format_row, has_passed, summarise, write_json
from benchmarks.gpu.rig import DryRig, GpuRig
from benchmarks.gpu.sizes import FULL, SMALL
from benchmarks.gpu.workspace import WorkspaceSection
from benchmarks.machine import describe_machine
from radixserve.errors import BackendUnavailableError
from radixserve.models.cache_folder import is_complete
from radixserve.models.default_model import default_model_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.gpu.budget import Section
    from benchmarks.gpu.rig import Rig

SECTIONS: tuple[Section, ...] = (
    ModulesSection(),
    ConformanceSection(),
    LayerOpsSection(),
    CachedLogitsSection(),
    GreedySection(),
    LimitsSection(),
    DecodeSpeedSection(),
    PrefillSpeedSection(),
    CascadeSpeedSection(),
    HostTimeSection(),
    WorkspaceSection(),
    FewShotSection(),
)
"""The most important first: the time may not be enough for all."""

NO_GPU = 2


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_check",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [section.name for section in SECTIONS]
    parser.add_argument("--dry-run", action="store_true", help="on the CPU, to find what is broken")
    parser.add_argument("--minutes", type=float, default=8.0, help="for all sections together")
    parser.add_argument("--sections", nargs="+", choices=names, default=names)
    parser.add_argument("--model", type=Path, help="folder of a small model (the default model)")
    parser.add_argument("--json", type=Path, default=Path("gpu_check.json"), help="all figures")
    return parser.parse_args(argv)


def find_rig(args: argparse.Namespace) -> Rig:
    """Return what is to be measured.

    Raises:
        BackendUnavailableError: it takes a GPU, and there is none.
    """
    if args.dry_run:
        return DryRig(SMALL, args.model)
    return GpuRig.find(FULL, args.model or default_model())


def default_model() -> Path | None:
    """Return the default model's folder; None where it was not fetched."""
    folder = default_model_folder()
    return folder if is_complete(folder) else None


def describe_device(rig: Rig) -> str:
    """Return the device's name, and the versions of what runs on it."""
    name = torch.cuda.get_device_name(rig.device) if rig.device.type == "cuda" else "CPU, dry run"
    try:
        package = version("flashinfer-python")
    except PackageNotFoundError:
        package = "not installed"
    return f"{name}, CUDA {torch.version.cuda}, flashinfer {package}"


def main(argv: Sequence[str] | None = None) -> int:
    """Check, measure, print; return the exit code."""
    args = parse_args(argv)
    try:
        rig = find_rig(args)
    except BackendUnavailableError as error:
        print(f"gpu_check: {error}", file=sys.stderr)
        return NO_GPU
    device = describe_device(rig)
    print(f"{describe_machine()}\n{device}\n\n{HEADER}", flush=True)
    rows = []
    chosen = [section for section in SECTIONS if section.name in args.sections]
    for row in Budget(60 * args.minutes).run_sections(chosen, rig):
        rows.append(row)
        print(format_row(row), flush=True)
    print(f"\n{summarise(rows)}")
    write_json(args.json, rows, rig, device)
    return 0 if has_passed(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
