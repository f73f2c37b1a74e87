"""One generated value, in as many attempts as it takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from radixserve.errors import IncompleteError, ValidationFailedError
from radixserve.frontend.backends.protocol import GenCall
from radixserve.frontend.constraint import UnreadableOutputError, name_of
from radixserve.frontend.events import Restart
from radixserve.frontend.path import seed_of
from radixserve.frontend.pieces import Text, Turn
from radixserve.frontend.report import CallRecord

if TYPE_CHECKING:
    from collections.abc import Mapping

    from radixserve.frontend.backends.protocol import GenDone
    from radixserve.frontend.constraint import OutputType
    from radixserve.frontend.gen_options import GenOptions
    from radixserve.frontend.path import Path
    from radixserve.frontend.pieces import Part, Transcript
    from radixserve.frontend.run import Run

RETRY_TEMPERATURE = 0.7
"""A plain prompt has nobody to ask again: another attempt is drawn at this temperature or above."""


@dataclass(frozen=True, slots=True)
class Output:
    """One generated value, and what the prompt goes on with."""

    value: Any
    parts: tuple[Part, ...]
    call_id: str


class Attempts:
    """One value, in as many attempts as it takes."""

    def __init__(
        self,
        run: Run,
        branch: Path,
        path: str,
        index: int,
        name: str | None,
        parent: str,
        hints: Mapping[str, Any],
    ) -> None:
        self._run = run
        self._branch = branch
        self._path = path
        self._index = index
        self._name = name
        self._parent = parent
        self._hints = run.hints(**hints)
        self._failed: list[tuple[str, str]] = []

    async def run(
        self, start: Transcript, kind: Any, wanted: OutputType, options: GenOptions
    ) -> Output:
        """Return the first value that is one.

        A failed attempt is a sibling: what it wrote does not become part of the prompt.

        Raises:
            IncompleteError: the last attempt was cut.
            ValidationFailedError: there is none.
        """
        while True:
            done = await self._attempt(start, wanted, options)
            try:
                value = self._read(done, kind, wanted)
            except (IncompleteError, UnreadableOutputError) as failed:
                self._failed.append((done.text, str(failed)))
                if len(self._failed) <= options.retries:
                    self._run.tell(Restart(self._path, self._name))
                    continue
                if isinstance(failed, IncompleteError):
                    raise
                raise ValidationFailedError(
                    f"{len(self._failed)} attempts gave no {name_of(kind)}: {failed}",
                    attempts=tuple(self._failed),
                ) from None
            return Output(value, done.parts, done.call_id)

    async def _attempt(self, start: Transcript, wanted: OutputType, options: GenOptions) -> GenDone:
        number = len(self._failed)
        temperature = options.temperature
        if number and not start.is_chat:
            temperature = max(temperature, RETRY_TEMPERATURE)
        seed = options.seed
        if seed is None or number:
            seed = seed_of(self._run.options.seed + (seed or 0), self._path, self._index, number)
        call = GenCall(
            path=self._path if not number else f"{self._path}.retry[{number}]",
            transcript=self._asked_again(start) if number and start.is_chat else start,
            parent=self._parent,
            max_tokens=options.max_tokens or self._run.options.max_tokens,
            temperature=temperature,
            top_p=options.top_p,
            top_k=options.top_k,
            seed=seed,
            stop=options.stops,
            constraint=wanted.constraint,
            timeout_s=options.timeout,
            logprobs=options.logprobs,
            hints=self._hints,
        )
        done = await self._run.generate(call, self._name)
        self._run.note(
            CallRecord(
                call.path,
                "gen",
                self._branch.steps,
                self._name,
                done.text,
                done.usage,
                retries=int(number > 0),
                transcript=call.transcript,
            )
        )
        return done

    def _read(self, done: GenDone, kind: Any, wanted: OutputType) -> Any:
        if wanted.constraint is not None and done.finish_reason in ("length", "timeout"):
            raise IncompleteError(
                f"the {name_of(kind)} was cut ({done.finish_reason}) after "
                f"{done.usage.output_tokens} tokens: {done.text[-64:]!r}",
                partial=done.text,
                reason=done.finish_reason,
            )
        return wanted.parse(done.text)

    def _asked_again(self, start: Transcript) -> Transcript:
        """The chat with the failed attempt in it, and what was wrong with it."""
        text, why = self._failed[-1]
        return (
            start.plus(Text(text))
            .closed()
            .with_turn(Turn("user", (Text(f"That cannot be used: {why}. Answer again."),)))
            .with_turn(Turn("assistant", is_open=True))
        )
