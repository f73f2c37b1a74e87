"""What the kernels run on: an instruction set, and a number of threads. Both for the process."""

from __future__ import annotations

from radixserve.kernels.native import extension, require


def variants() -> list[str]:
    """Return the instruction sets that this machine can run, from the plainest to the best."""
    require()
    return extension.variants()


def variant() -> str:
    """Return the instruction set in use: the best, unless another was chosen."""
    require()
    return extension.variant()


def set_variant(name: str) -> None:
    """Use another instruction set from now on; results differ between them by rounding.

    Raises:
        ValueError: it is not one of `variants()`.
    """
    require()
    extension.set_variant(name)


def num_threads() -> int:
    """Return how many threads compute, the caller's own included; at first, one a core."""
    require()
    return extension.num_threads()


def set_num_threads(n: int) -> None:
    """Compute with `n` threads from now on. Waits for a computation that is under way.

    Raises:
        ValueError: n is below 1 or above 1024.
    """
    require()
    extension.set_num_threads(n)


def measure_read_bandwidth(num_bytes: int = 256 << 20) -> float:
    """Return how fast all threads together read memory in order, in bytes a second.

    Args:
        num_bytes: How much is read; several times the last cache.
    """
    require()
    return extension.measure_read_bandwidth(num_bytes)


def measure_peak_flops() -> float:
    """Return the multiply-adds of all threads on registers, in operations (two each) a second."""
    require()
    return extension.measure_peak_flops()
