"""`radixserve bench kernels`: how near the native kernels come to what this machine can do."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from radixserve.cli.output_files import require_folders
from radixserve.config import DEFAULT_MODEL
from radixserve.errors import BackendUnavailableError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from radixserve.bench.kernels.limits import Limits, Measured
    from radixserve.models.config import ModelSpec

PARTS = ("products", "attention")
WEIGHTS = ("float32", "bfloat16", "int8")

EPILOG = """\
examples:
  radixserve bench kernels --quick
  radixserve bench kernels --parts products --weights int8 --rows 1 32
  radixserve bench kernels --parts attention --plot attention.png

Two floors bound a kernel: what it reads must come from memory once, and its multiply-adds must be
done. Both limits are measured first, in the same run. The columns say how much of the memory's
speed and of the multiply-add peak was reached; 'floor' is the share of the nearer one. Behind it
stands how many times as long another way takes, in turn with ours: torch's float32 product; the
same attention with sharing switched off; and over copies of what is shared.

Only sizes are read of the model; its weights are not. Other work on the machine spoils the figures.
"""


def add_parser(actions: Any) -> None:
    """Add this action to those of `radixserve bench`."""
    parser = actions.add_parser(
        "kernels",
        help="measure the native kernels against this machine's limits",
        description="Measure the native kernels on a model's shapes, against what this machine's "
        "memory and arithmetic allow.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--model", default=DEFAULT_MODEL, help="whose shapes (default: the default model)"
    )
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, default=PARTS, help="what to measure (default: all)"
    )
    parser.add_argument(
        "--rows",
        type=int,
        nargs="+",
        default=[1, 2, 4, 8, 16, 32, 128, 512],
        metavar="N",
        help="rows of the products (default: 1 2 4 8 16 32 128 512)",
    )
    parser.add_argument(
        "--weights",
        nargs="+",
        choices=WEIGHTS,
        default=WEIGHTS,
        help="how the products' weights are kept (default: all)",
    )
    parser.add_argument(
        "--kv",
        nargs="+",
        choices=("float32", "bfloat16", "int8"),
        default=["bfloat16"],
        help="how KV is held (default: bfloat16)",
    )
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="default: 5")
    parser.add_argument("--num-threads", type=int, metavar="N", help="default: one a core")
    parser.add_argument(
        "--quick", action="store_true", help="few and small cases: to see that it works"
    )
    parser.add_argument(
        "--save-result", type=Path, metavar="FILE.json", help="write the numbers as JSON"
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FILE.png", help="draw how near each kernel is to its floor"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure; print a line as soon as it is known.

    Raises:
        ConfigError: a flag cannot be used, or the kernels are not here.
        ModelLoadError: there is no such model.
    """
    _check(args)
    from radixserve import kernels
    from radixserve.bench.kernels.limits import HEADER, Limits, format_line

    if not kernels.is_available():
        raise BackendUnavailableError(kernels.why_not())
    _set_threads(args.num_threads)
    limits = Limits.measure()
    print(limits)
    print(HEADER)
    found = []
    for measured in _measure(args, _spec(args.model)):
        print(format_line(measured, limits), flush=True)
        found.append(measured)
    _write(args, limits, found)
    return 0


def _check(args: argparse.Namespace) -> None:
    from radixserve.bench.plot import require_matplotlib

    if min(args.rows) < 1 or args.repeats < 1 or (args.num_threads or 1) < 1:
        raise ConfigError("--rows, --repeats and --num-threads must be at least 1")
    if args.plot is not None:
        require_matplotlib()
    require_folders(args.save_result, args.plot)


def _set_threads(count: int | None) -> None:
    import torch

    from radixserve import kernels

    if count is not None:
        kernels.set_num_threads(count)
    torch.set_num_threads(kernels.num_threads())


def _spec(model: str) -> ModelSpec:
    from radixserve.cli.progress import RichProgress
    from radixserve.models.config import ModelSpec, read_json
    from radixserve.models.source import resolve_model

    return ModelSpec.from_hf(
        read_json(resolve_model(model, progress=RichProgress()) / "config.json")
    )


def _measure(args: argparse.Namespace, spec: ModelSpec) -> Iterator[Measured]:
    from radixserve.bench.kernels.attention import CASES, measure_case
    from radixserve.bench.kernels.products import measure_products, shapes_of

    repeats = 2 if args.quick else args.repeats
    rows = [1, 32] if args.quick else args.rows
    if "products" in args.parts:
        for shape in shapes_of(spec):
            for dtype in args.weights[-1:] if args.quick else args.weights:
                yield from measure_products(shape, dtype, rows, repeats=repeats)
    if "attention" in args.parts:
        for case in CASES:
            for dtype in args.kv:
                chosen = case.shortened() if args.quick else case
                yield measure_case(chosen, dtype, spec, repeats=repeats)


def _write(args: argparse.Namespace, limits: Limits, found: list[Measured]) -> None:
    from radixserve.bench.plot import draw_floors

    if args.save_result is not None:
        document = {
            "bytes_per_s": limits.bytes_per_s,
            "flops": limits.flops,
            "kernels": [each.as_json(limits) for each in found],
        }
        args.save_result.write_text(json.dumps(document, indent=1), encoding="utf-8")
    if args.plot is not None:
        names = [f"{m.name} {m.dtype} {m.rows} x {m.context or '-'}" for m in found]
        draw_floors(names, [each.shares(limits)[2] for each in found], args.plot)
