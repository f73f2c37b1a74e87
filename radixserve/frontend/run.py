"""One run of a program: what all its branches share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from radixserve.errors import BudgetExceededError, UnsupportedByBackendError
from radixserve.frontend.backends.patience import PatientBackend
from radixserve.frontend.backends.protocol import CallHints, Capability, GenDone
from radixserve.frontend.events import Delta
from radixserve.frontend.report import CallRecord, Report
from radixserve.frontend.trace import KnowsTokens

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve.frontend.backends.protocol import (
        Backend,
        CallUsage,
        GenCall,
        ScoreCall,
        ScoreDone,
        WarmDone,
    )
    from radixserve.frontend.events import Event
    from radixserve.frontend.pieces import Transcript
    from radixserve.frontend.record import Recording

INSTEAD = {
    Capability.REGEX: "use a Literal or a JSON type, or another backend",
    Capability.JSON: "ask for str and parse it, or use another backend",
    Capability.GRAMMAR: "use a JSON type, or another backend",
    Capability.SCORE: "use gen(type=Literal[...]), or another backend",
    Capability.PLAIN: "use turns: p.user(text)",
    Capability.CHAT: "use plain text: p += text",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What a program or its caller decided for the whole run."""

    seed: int = 0
    priority: int = 0
    ttl_s: float = 0.0
    budget: int | None = None
    """Most tokens computed: input that was not cached, and output."""
    max_tokens: int = 256
    """Of a generation that does not say."""


@dataclass(slots=True)
class Run:
    """Backend, options, report and listener of one run."""

    backend: Backend
    name: str
    options: RunOptions = field(default_factory=RunOptions)
    report: Report = field(default_factory=Report)
    listener: Callable[[Event], None] | None = None
    recording: Recording | None = None
    call_ids: list[str] = field(default_factory=list)
    """Of the calls that branches may go on from."""
    _patient: PatientBackend = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._patient = PatientBackend(self.backend)

    def tell(self, event: Event) -> None:
        """Tell whoever streams the run."""
        if self.listener is not None:
            self.listener(event)

    def require(self, *capabilities: Capability) -> None:
        """Refuse what the backend cannot do, before anything is sent.

        Raises:
            UnsupportedByBackendError: names what is missing and what to do instead.
        """
        for capability in capabilities:
            if capability not in self.backend.capabilities:
                instead = INSTEAD.get(capability, "use another backend")
                raise UnsupportedByBackendError(
                    f"{self.backend.name} has no {capability.value}: {instead}"
                )

    def hints(self, **fields: Any) -> CallHints:
        """Return a call's hints."""
        return CallHints(
            program=self.name,
            priority=self.options.priority,
            **({"ttl_s": self.options.ttl_s} | fields),
        )

    async def generate(self, call: GenCall, name: str | None) -> GenDone:
        """Run a generation to its end, telling its pieces.

        Raises:
            RadixServeError: the backend refused or failed.
        """
        if self.recording is not None and (known := self.recording.find(call)) is not None:
            self.tell(Delta(call.path, name, known.text))
            return known
        done: GenDone | None = None
        async for piece in self._patient.generate(call):
            if isinstance(piece, GenDone):
                done = piece
            else:
                self.tell(Delta(call.path, name, piece))
        assert done is not None
        if done.call_id:
            self.call_ids.append(done.call_id)
        if self.recording is not None:
            self.recording.keep(call, done)
        return done

    async def warm(self, transcript: Transcript, parent: str, hints: CallHints) -> WarmDone:
        """Wait until a prompt is in the cache."""
        done = await self._patient.warm(transcript, parent, hints)
        self.call_ids.append(done.call_id)
        return done

    def end(self) -> None:
        """Nobody goes on from this run's calls any more."""
        self.backend.forget(self.call_ids)
        self.call_ids.clear()

    async def score(self, call: ScoreCall) -> ScoreDone:
        """Score some options."""
        if self.recording is not None and (known := self.recording.find_score(call)) is not None:
            return known
        done = await self._patient.score(call)
        if self.recording is not None:
            self.recording.keep_score(call, done)
        return done

    def note(self, record: CallRecord) -> None:
        """Count a call that ended.

        Raises:
            BudgetExceededError: the run has computed more than its budget.
        """
        self.report.add(record)
        if self.report.encoder is None and isinstance(self.backend, KnowsTokens):
            self.report.encoder = self.backend.encoder
        spent = _spent(self.report.usage)
        if self.options.budget is not None and spent > self.options.budget:
            raise BudgetExceededError(
                f"the program has computed {spent} tokens, more than its budget of "
                f"{self.options.budget}"
            )


def _spent(usage: CallUsage) -> int:
    return usage.computed_tokens + usage.output_tokens
