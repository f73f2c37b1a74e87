"""What a program's calls cost, per branch and in all."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from radixserve.frontend.backends.protocol import CallUsage

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path as FilePath

    from radixserve.frontend.backends.encoding import TranscriptEncoder
    from radixserve.frontend.pieces import Transcript
    from radixserve.frontend.trace import Trace


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One call that ended."""

    path: str
    kind: str
    """gen, select, score or warm."""
    branch: tuple[str, ...]
    """The branch it ran on: its path's steps."""
    name: str | None
    text: str
    usage: CallUsage
    retries: int = 0
    transcript: Transcript | None = None
    """Its prompt."""


@dataclass(slots=True)
class Report:
    """All calls of one run, or of many."""

    calls: list[CallRecord] = field(default_factory=list)
    encoder: TranscriptEncoder | None = field(default=None, repr=False)
    """Of the backend, where that knows tokens: for `trace`."""

    def add(self, call: CallRecord) -> None:
        """Note a call. Mutates: the report."""
        self.calls.append(call)

    def extend(self, other: Report) -> None:
        """Note all of another report's calls. Mutates: the report."""
        self.calls.extend(other.calls)
        self.encoder = self.encoder or other.encoder

    @property
    def usage(self) -> CallUsage:
        """The sum over all calls."""
        return sum((call.usage for call in self.calls), CallUsage())

    @property
    def retries(self) -> int:
        """Attempts that were not the last."""
        return sum(call.retries for call in self.calls)

    @property
    def waits(self) -> int:
        """How often the backend had no room, and a call came again later."""
        return self.usage.waits

    @property
    def hit_rate(self) -> float:
        """Share of the input tokens that were cached, from 0 to 1."""
        usage = self.usage
        return usage.cached_tokens / usage.input_tokens if usage.input_tokens else 0.0

    @property
    def prefill_tokens_per_s(self) -> float:
        """Input tokens computed in a second of waiting for a first token; 0 if nothing was."""
        usage = self.usage
        return usage.computed_tokens / usage.ttft_s if usage.ttft_s > 0 else 0.0

    @property
    def saved_s(self) -> float:
        """About how many seconds of prefill the cache has saved: an estimate from the calls' own
        times to the first token, queueing included."""
        rate = self.prefill_tokens_per_s
        return self.usage.cached_tokens / rate if rate else 0.0

    def branches(self) -> dict[tuple[str, ...], CallUsage]:
        """Return the usage of each branch."""
        found: dict[tuple[str, ...], CallUsage] = {}
        for call in self.calls:
            found[call.branch] = found.get(call.branch, CallUsage()) + call.usage
        return found

    def trace(self) -> Trace:
        """Return the prefix tree of all calls."""
        from radixserve.frontend.trace import Trace

        return Trace(self)

    def show(self, html: str | FilePath | None = None) -> None:
        """Draw the prefix tree of all calls in the terminal, or as a page in a file."""
        self.trace().show(html)

    def __str__(self) -> str:
        usage = self.usage
        return (
            f"{len(self.calls)} calls, {usage.input_tokens:,} input tokens "
            f"({usage.cached_tokens:,} cached, {self.hit_rate:.1%}; {usage.computed_tokens:,} "
            f"computed), {usage.output_tokens:,} output ({usage.forced_tokens:,} forced), "
            f"{self.retries} retries, {usage.waits} waits, about {self.saved_s:.1f} s of prefill "
            "saved"
        )


def merged(reports: Iterable[Report]) -> Report:
    """Return one report of all calls."""
    whole = Report()
    for report in reports:
        whole.extend(report)
    return whole
