"""`StepTimes`: where the time of the steps goes, part by part.

A step's parts follow one another without a gap, across the threads that do them, so one moment
after each of them accounts for all of the time:

    between | schedule | hand_over | prepare | forward | logits | sample | hand_over | land |
    the event loop's     the worker's                                      the event loop's

On a device that works by itself, forward and logits are only queued (`launch`), and `wait` is what
it takes longer than the host: as long as that is above 0, the device has never been idle.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Part: TypeAlias = Literal[
    "between",
    "schedule",
    "hand_over",
    "prepare",
    "launch",
    "forward",
    "logits",
    "sample",
    "wait",
    "land",
]

PARTS: Mapping[Part, str] = {
    "between": "delivering tokens, HTTP, taking requests in",
    "schedule": "choosing who computes what",
    "hand_over": "from one thread to another and back",
    "prepare": "swaps, copies, the step's arrays",
    "launch": "planning attention, queueing the model's work on a device",
    "forward": "planning attention, the layers",
    "logits": "the output head, for the rows that sample",
    "sample": "choosing tokens, log probabilities, grammars",
    "wait": "for the device",
    "land": "appending tokens, the tree, text",
}
"""What each part is, in the order of a step."""

assert tuple(PARTS) == get_args(Part)

FORWARD: frozenset[Part] = frozenset(("forward", "logits", "wait"))
"""The parts in which the model is computed; all others are the host's."""


class StepTimes:
    """Seconds in each part, over all steps so far.

    Only the thread whose part it is calls `lap`; the parts of a step are never done side by side.
    A reader in another thread sees each part's seconds as they were at some moment.

    Args:
        clock: Seconds; only differences matter.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.clear()

    def clear(self) -> None:
        """Begin anew: what was counted so far was no serving."""
        self._last = self._clock()
        self.seconds: dict[Part, float] = dict.fromkeys(PARTS, 0.0)

    def lap(self, part: Part) -> None:
        """Count the time since the last lap as `part`'s. Costs a fraction of a microsecond."""
        now = self._clock()
        self.seconds[part] += now - self._last
        self._last = now

    def skip(self) -> None:
        """Count the time since the last lap as nobody's: there was nothing to do."""
        self._last = self._clock()


def host_share(seconds: Mapping[Part, float]) -> float:
    """Return which share of the time was not the model's; 0 where there was no step."""
    total = sum(seconds.values())
    host = total - sum(seconds[part] for part in FORWARD)
    return host / total if total else 0.0
