"""A capture that needs no device: a replay runs the action again."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


class PlainCapture:
    """Like a CUDA graph it reads what its inputs hold at each replay, whoever holds them, and puts
    the result where the first one went, so that the one before is lost."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []
        """Of what each captured action returned."""
        self.num_replays = 0

    def __call__(self, action: Callable[[], Tensor]) -> Callable[[], Tensor]:
        result = action().clone()
        self.shapes.append(tuple(result.shape))

        def replay() -> Tensor:
            self.num_replays += 1
            return result.copy_(action())

        return replay
