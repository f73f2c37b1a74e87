"""Compiles the FlashInfer modules that the server and gpu_check need, on a machine without a GPU.

    python -m benchmarks.gpu.prebuild --list              which ones, and which of them are built
    python -m benchmarks.gpu.prebuild                     build for Hopper, into the package itself
    python -m benchmarks.gpu.prebuild --arch 8.0 9.0a --pack modules.tar

A module that is built at run time costs minutes of a rented GPU. Those that lie in the package's
folder data/aot are loaded as they are, without nvcc; with FLASHINFER_DISABLE_JIT=1 a missing one is
an error and not a build. On another machine: tar -xf modules.tar -C SITE_PACKAGES/flashinfer.

Tensor-core decode runs on the prefill modules. K and V have equal strides here, and for that the
package loads a variant of its own, which only a private function generates.
Source: flashinfer 0.7.2.post1, prefill.py get_batch_prefill_module.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.gpu.toolchain import Toolchain, ToolchainError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Q_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
FP8_DTYPES = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
HEAD_DIMS = (64, 128, 256)
NO_TOOLS = 2


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line. The defaults are what gpu_check needs."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.prebuild",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--arch", nargs="+", default=["9.0a"], help="8.0 A100, 8.9 L4, 9.0a H100")
    parser.add_argument("--dtype", choices=list(Q_DTYPES), default="bfloat16", help="the model's")
    parser.add_argument(
        "--kv-cache-dtypes",
        nargs="+",
        choices=["auto", *FP8_DTYPES],
        default=["auto", "fp8_e4m3"],
        help="auto: the model's",
    )
    parser.add_argument("--head-dims", nargs="+", type=int, choices=HEAD_DIMS, default=[64, 128])
    parser.add_argument("--jobs", type=int, help="compilers at a time: each takes up to 4 GB")
    parser.add_argument("--pack", type=Path, help="write the modules to this tar file, too")
    parser.add_argument("--list", action="store_true", help="name the modules, build nothing")
    return parser.parse_args(argv)


def set_environment(args: argparse.Namespace) -> None:
    """Say what the package reads when it is imported.

    Mutates: the environment of this process.
    """
    os.environ["FLASHINFER_CUDA_ARCH_LIST"] = " ".join(args.arch)
    os.environ.pop("FLASHINFER_DISABLE_JIT", None)
    if args.jobs:
        os.environ["MAX_JOBS"] = str(args.jobs)


def module_specs(args: argparse.Namespace) -> Iterator[Any]:
    """Yield the package's description of each module: the merge, a layer's small operations, and
    attention for each shape."""
    from flashinfer.jit.activation import gen_act_and_mul_module
    from flashinfer.jit.attention.modules import _gen_batch_prefill_primary_module
    from flashinfer.jit.cascade import gen_cascade_module
    from flashinfer.jit.norm import gen_norm_module
    from flashinfer.jit.rope import gen_rope_module

    yield gen_cascade_module()
    yield gen_norm_module()
    yield gen_rope_module()
    yield gen_act_and_mul_module("silu")
    q_dtype = Q_DTYPES[args.dtype]
    for name in args.kv_cache_dtypes:
        for head_dim in args.head_dims:
            yield _gen_batch_prefill_primary_module(
                "fa2",
                q_dtype,
                FP8_DTYPES.get(name, q_dtype),
                q_dtype,
                torch.int32,
                head_dim,
                head_dim,
                0,  # the rows are rotated already
                False,  # no sliding window
                False,  # no soft cap
                False,  # scores in float32
            )


def build(specs: Sequence[Any]) -> None:
    """Compile what is missing, and put it where the package looks first.

    Mutates: the package's folder, and its cache.
    """
    from flashinfer.jit import build_jit_specs

    build_jit_specs(list(specs), verbose=False, skip_prebuilt=True)
    for spec in specs:
        if not spec.aot_path.exists():
            spec.aot_path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(spec.jit_library_path, spec.aot_path)


def pack(specs: Sequence[Any], path: Path) -> None:
    """Write the modules to a tar file, with their place in the package."""
    with tarfile.open(path, "w") as archive:
        for spec in specs:
            library = spec.aot_path
            archive.add(library, f"data/aot/{library.parent.name}/{library.name}")


def main(argv: Sequence[str] | None = None) -> int:
    """Build or list; return the exit code."""
    args = parse_args(argv)
    set_environment(args)
    try:
        import flashinfer
    except ImportError as error:
        print(f"gpu_prebuild: {error}; pip install 'radixserve[cuda]'", file=sys.stderr)
        return NO_TOOLS
    if args.list:
        return show(list(module_specs(args)))
    with tempfile.TemporaryDirectory() as links:
        try:
            os.environ.update(Toolchain.find(Path(links)).environment())
        except ToolchainError as error:
            print(f"gpu_prebuild: {error}", file=sys.stderr)
            return NO_TOOLS
        specs = list(module_specs(args))
        print(f"building with flashinfer {flashinfer.__version__} for {' '.join(args.arch)}")
        build(specs)
    if args.pack:
        pack(specs, args.pack)
    return show(specs)


def show(specs: Sequence[Any]) -> int:
    """Print each module's name, and whether it is there; return the exit code."""
    for spec in specs:
        print(f"{'built  ' if spec.aot_path.exists() else 'missing'} {spec.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
