from __future__ import annotations

import pytest
import torch

from radixserve.core.plan import SamplingState, ScheduledReq, StepPlan
from radixserve.device.transfer import (
    PastEvent,
    host_buffer,
    make_event,
    pinned_zeros,
    synchronize,
    to_device,
)
from radixserve.runtime.batch import BatchTensors, build_batch
from radixserve.runtime.staging import Staging
from radixserve.types import ReqId, SamplingParams, pack_ids

CPU = torch.device("cpu")
GREEDY = SamplingState(SamplingParams(temperature=0.0), output_len=0)


def make_batch(*lens: int, first: int = 0) -> BatchTensors:
    reqs = [
        ScheduledReq(
            ReqId(f"r{row}"),
            pack_ids(range(first, first + length)),
            row,
            pack_ids(range(row * 8, row * 8 + 8)),
            GREEDY if row % 2 == 0 else None,
        )
        for row, length in enumerate(lens)
    ]
    return build_batch(StepPlan(0, tuple(reqs)), 4)


class SpyEvent:
    """An event that writes down what is done with it."""

    def __init__(self, name: int, log: list[str]) -> None:
        self._name = name
        self._log = log

    def record(self) -> None:
        self._log.append(f"record {self._name}")

    def synchronize(self) -> None:
        self._log.append(f"wait {self._name}")


def equal(one: BatchTensors, other: BatchTensors) -> bool:
    return (
        torch.equal(one.token_ids, other.token_ids)
        and torch.equal(one.positions, other.positions)
        and torch.equal(one.sample_rows, other.sample_rows)
        and one.metadata is other.metadata
    )


@pytest.mark.parametrize("lens", [(1,), (3, 1, 1), (10,), (1,) * 10])
def test_a_staged_batch_is_the_same_batch(lens: tuple[int, ...]) -> None:
    batch = make_batch(*lens, first=7)

    assert equal(Staging(10, CPU)(batch), batch)


def test_a_batch_beyond_the_buffers_is_brought_all_the_same() -> None:
    batch = make_batch(9, 8)

    assert equal(Staging(4, CPU)(batch), batch)


def test_batches_share_one_place_on_the_device() -> None:
    staging = Staging(10, CPU)
    first, second = staging(make_batch(4)), staging(make_batch(4, first=50))

    assert first.token_ids.data_ptr() == second.token_ids.data_ptr()
    assert first.token_ids.tolist() == [50, 51, 52, 53]


def test_the_given_batch_is_not_what_is_overwritten() -> None:
    staging, batch = Staging(10, CPU), make_batch(4)
    staging(batch)
    staging(make_batch(4, first=50))

    assert batch.token_ids.tolist() == [0, 1, 2, 3]


def test_a_buffer_is_filled_again_only_after_its_copy_and_two_take_turns() -> None:
    log: list[str] = []
    names = iter(range(9))
    staging = Staging(10, CPU, make_event=lambda _: SpyEvent(next(names), log))

    for _ in range(3):
        staging(make_batch(3))

    assert log == ["wait 0", "record 0", "wait 1", "record 1", "wait 0", "record 0"]


def test_on_the_host_nothing_is_copied_or_waited_for() -> None:
    host = torch.arange(3)

    assert to_device(host, CPU) is host
    assert isinstance(make_event(CPU), PastEvent)
    assert host_buffer((2, 3), torch.float64, CPU).shape == (2, 3)
    synchronize(CPU)


class SpyCudart:
    """The part of the CUDA runtime that pins memory."""

    def __init__(self) -> None:
        self.pinned: dict[int, int] = {}

    def cudaHostRegister(self, address: int, num_bytes: int, flags: int) -> int:
        assert flags == 0
        self.pinned[address] = num_bytes
        return 0

    def cudaHostUnregister(self, address: int) -> int:
        del self.pinned[address]
        return 0


def test_pinned_memory_is_as_large_as_asked_for_and_let_go_with_the_last_view(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cudart, checked = SpyCudart(), list[int]()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: cudart)
    monkeypatch.setattr(torch.cuda, "check_error", checked.append)
    memory = pinned_zeros(5000)
    view = memory.view(torch.float32)[7:]

    assert cudart.pinned == {memory.data_ptr(): 5000}
    assert checked == [0]
    assert not memory.any()
    del memory
    assert cudart.pinned
    del view
    assert not cudart.pinned
