"""How a long preparation step tells whoever watches how far it has come."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """One bar at a time: `start`, any number of `advance`, `finish`.

    `finish` is called for every `start`, also where the step between them failed.
    """

    def start(self, description: str, total: int | None) -> None:
        """Begin a step of `total` units (bytes or tensors); None where the total is unknown."""

    def advance(self, n: int) -> None:
        """Count `n` more units as done."""

    def finish(self) -> None:
        """End the step that is running."""


class SilentProgress:
    """A `Progress` that shows nothing."""

    def start(self, description: str, total: int | None) -> None:
        """Begin a step."""

    def advance(self, n: int) -> None:
        """Count `n` more units."""

    def finish(self) -> None:
        """End the step."""
