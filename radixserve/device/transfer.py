"""Copies between host and device that nobody waits for; on the host itself they are plain copies.

A copy runs beside the host only from and to memory that the system cannot move: pinned memory.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


class Event(Protocol):
    """A point in a device's work, as `torch.cuda.Event` is one."""

    def record(self) -> None:
        """Be the point after everything that was given to the device so far."""

    def synchronize(self) -> None:
        """Return once the device is past the point; at once if none was recorded."""


class PastEvent:
    """The event of a device that has done everything by the time it is asked: the host."""

    def record(self) -> None:
        """Do nothing: it is past already."""

    def synchronize(self) -> None:
        """Do nothing: it is past already."""


def make_event(device: torch.device) -> Event:
    """Return an event of a device's current stream."""
    if device.type == "cuda":
        event: Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        return event
    return PastEvent()


def host_buffer(shape: int | Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return host memory, not set to anything, that a device copies from and to on its own."""
    size = (shape,) if isinstance(shape, int) else tuple(shape)
    return torch.empty(size, dtype=dtype, device="cpu", pin_memory=device.type == "cuda")


def pinned(host: Tensor, device: torch.device) -> Tensor:
    """Return a host tensor as a device copies it on its own: in pinned memory, if it is a GPU."""
    return host.pin_memory() if device.type == "cuda" else host


def pinned_zeros(num_bytes: int) -> Tensor:
    """Return host memory of zeros that a GPU copies from and to on its own, for as long as any
    tensor is over it.

    Exactly so many bytes: torch's own pinned memory is rounded up to a power of two.

    Raises:
        RuntimeError: the system does not let so much memory be pinned.
    """
    memory = np.zeros(num_bytes, dtype=np.uint8)
    cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    torch.cuda.check_error(cudart.cudaHostRegister(memory.ctypes.data, num_bytes, 0))
    # The tensor keeps the array, which lets go of its weak references before its memory.
    weakref.finalize(memory, cudart.cudaHostUnregister, memory.ctypes.data).atexit = False
    return torch.from_numpy(memory)


def to_device(host: Tensor, device: torch.device) -> Tensor:
    """Return a copy of a host tensor on a device, without waiting for it; itself on the host.

    torch keeps the pinned memory in between from other use until the copy is done.
    """
    return pinned(host, device).to(device, non_blocking=True)


def synchronize(device: torch.device) -> None:
    """Wait for everything that was given to a device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
