"""Instruction sets and numbers of threads that a test runs the kernels with."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from radixserve import kernels

if TYPE_CHECKING:
    from collections.abc import Iterator

VARIANTS = kernels.variants() if kernels.is_available() else []


@contextmanager
def machine(*, variant: str | None = None, threads: int | None = None) -> Iterator[None]:
    """Let the kernels use this variant and so many threads meanwhile."""
    variant_before, threads_before = kernels.variant(), kernels.num_threads()
    kernels.set_variant(variant or variant_before)
    kernels.set_num_threads(threads or threads_before)
    try:
        yield
    finally:
        kernels.set_variant(variant_before)
        kernels.set_num_threads(threads_before)
