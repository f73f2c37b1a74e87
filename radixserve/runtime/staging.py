"""`Staging`: a step's small tensors go to the device together, while the host goes on.

    pinned A   [token ids | positions | sample rows]  ──copy──►  one buffer on the device
    pinned B   filled meanwhile for the next step

A pinned buffer is written again only when its copy is done. One buffer on the device is enough: the
next copy waits in the device's own queue until the step before has read it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from radixserve.device.transfer import host_buffer, make_event, to_device

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from radixserve.device.transfer import Event
    from radixserve.runtime.batch import BatchTensors

NUM_BUFFERS = 2
"""One is copied from while the other is filled."""


@dataclass(frozen=True, slots=True, eq=False)
class _Buffer:
    memory: Tensor
    """[capacity], int64, pinned."""
    copied: Event


class Staging:
    """Brings batches to a device.

    Args:
        max_tokens: Tokens of the largest batch that goes through the buffers; a larger one is
            copied by itself.
        device: Where to.
        make_event: Makes the events that tell when a copy is done.
    """

    def __init__(
        self,
        max_tokens: int,
        device: torch.device,
        *,
        make_event: Callable[[torch.device], Event] = make_event,
    ) -> None:
        capacity = 3 * max_tokens  # no more rows are sampled than computed
        self._device = device
        self._target = torch.empty(capacity, dtype=torch.int64, device=device)
        self._buffers = [
            _Buffer(host_buffer(capacity, torch.int64, device), make_event(device))
            for _ in range(NUM_BUFFERS)
        ]

    def __call__(self, batch: BatchTensors) -> BatchTensors:
        """Return the batch with its tensors on the device: good until the next call.

        The metadata stays on the host: a backend brings what it needs of it.
        """
        parts = (batch.token_ids, batch.positions, batch.sample_rows)
        sizes = [len(part) for part in parts]
        if sum(sizes) > len(self._target):
            token_ids, positions, sample_rows = (to_device(part, self._device) for part in parts)
        else:
            staged = self._stage(parts, sum(sizes))
            token_ids, positions, sample_rows = torch.split(staged, sizes)
        return replace(batch, token_ids=token_ids, positions=positions, sample_rows=sample_rows)

    def _stage(self, parts: tuple[Tensor, ...], size: int) -> Tensor:
        buffer = self._buffers.pop(0)
        self._buffers.append(buffer)
        buffer.copied.synchronize()
        torch.cat(parts, out=buffer.memory[:size])
        staged = self._target[:size]
        staged.copy_(buffer.memory[:size], non_blocking=True)
        buffer.copied.record()
        return staged
