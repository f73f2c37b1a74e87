"""A `Progress` that remembers what it was told."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ProgressStep:
    """One step between `start` and `finish`."""

    description: str
    total: int | None
    done: int = 0
    is_finished: bool = False


class RecordedProgress:
    """Keeps every step, and refuses calls in an order that no bar could show."""

    def __init__(self) -> None:
        self.steps: list[ProgressStep] = []

    def start(self, description: str, total: int | None) -> None:
        """Begin a step; the one before must have ended."""
        assert not self.steps or self.steps[-1].is_finished, "two steps at once"
        self.steps.append(ProgressStep(description, total))

    def advance(self, n: int) -> None:
        """Count `n` more units, never fewer than none."""
        assert n >= 0
        assert not self.steps[-1].is_finished, "progress after the end"
        self.steps[-1].done += n

    def finish(self) -> None:
        """End the step that is running."""
        assert not self.steps[-1].is_finished, "finished twice"
        self.steps[-1].is_finished = True
