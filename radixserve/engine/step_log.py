"""A log line about where the time of the steps went."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from radixserve.runtime.step_times import PARTS, host_share

if TYPE_CHECKING:
    from collections.abc import Mapping

    from radixserve.engine.engine_core import EngineCore
    from radixserve.runtime.step_times import Part


@dataclass(frozen=True, slots=True)
class StepMoment:
    """What had been counted at some moment."""

    steps: int
    parts: Mapping[Part, float]
    """Seconds in each part of the steps."""
    kernels: Mapping[str, float]
    """Seconds in each kind of kernel; empty where nobody counts."""

    @classmethod
    def of(cls, core: EngineCore) -> StepMoment:
        """Return what has been counted by now."""
        return cls(core.stats().steps, dict(core.times.seconds), core.kernel_seconds())


def step_line(before: StepMoment, after: StepMoment) -> str | None:
    """Return how long the steps between two moments took, part by part; None if there was none.

    All figures are milliseconds a step; parts that took no time are left out. The host's share is
    everything but the model's: see `FORWARD`.
    """
    steps = after.steps - before.steps
    if steps == 0:
        return None
    parts = {part: after.parts[part] - before.parts[part] for part in PARTS}
    words = [f"{part} {spent / steps * 1e3:.2f}" for part, spent in parts.items() if spent]
    line = f"{steps} steps of {sum(parts.values()) / steps * 1e3:.2f} ms: {', '.join(words)}"
    kernels = {name: spent - before.kernels.get(name, 0.0) for name, spent in after.kernels.items()}
    if kernels:
        largest = sorted(kernels.items(), key=lambda item: -item[1])
        told = ", ".join(f"{name} {spent / steps * 1e3:.2f}" for name, spent in largest)
        line = f"{line}; kernels: {told}"
    return f"{line}; host {host_share(parts):.1%}"
