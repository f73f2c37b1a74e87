"""A branch's calls: each has a path, a seed that hangs on it, and a line in the report."""

from __future__ import annotations

import asyncio
import dataclasses
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from radixserve.errors import (
    InvalidRequestError,
    RadixServeError,
)
from radixserve.frontend.attempts import Attempts, Output
from radixserve.frontend.backends.protocol import Capability, ScoreCall
from radixserve.frontend.choice import check_options, choose
from radixserve.frontend.constraint import output_type
from radixserve.frontend.events import Value
from radixserve.frontend.path import seed_of
from radixserve.frontend.pieces import Text, Transcript
from radixserve.frontend.report import CallRecord
from radixserve.frontend.scores import Score
from radixserve.grammar.spec import ChoiceSpec, GrammarTextSpec, RegexSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from radixserve.frontend.backends.protocol import CallUsage
    from radixserve.frontend.choice import Choice, Method
    from radixserve.frontend.constraint import OutputType
    from radixserve.frontend.gen_options import GenOptions
    from radixserve.frontend.path import Path
    from radixserve.frontend.pieces import Part
    from radixserve.frontend.run import Run


SAMPLE_STRIDE = 1_000_003
"""Between the places of a call's samples in the order of seeds: more than a branch has calls."""


class Calls:
    """Makes a branch's calls.

    Args:
        run: Of the program.
        path: Of the branch.
        parent: The last call of the branch that this one was forked from.
    """

    def __init__(self, run: Run, path: Path, parent: str = "") -> None:
        self.parent = parent
        """The last call whose output is a part of the branch."""
        self._run = run
        self._path = path
        self._count = 0
        self._hints: dict[str, Any] = {}

    def hint(self, fields: Mapping[str, Any]) -> None:
        """Say something of the next call's future."""
        allowed = {"ttl_s", "pause_s", "is_end", "priority"}
        for name in fields:
            if name not in allowed:
                raise InvalidRequestError(
                    f"hint has no field {name!r}; it has {', '.join(sorted(allowed))}", param=name
                )
        self._hints |= fields

    async def generate(
        self, start: Transcript, name: str | None, kind: Any, options: GenOptions
    ) -> list[Output]:
        """Generate `n` values side by side; the first is the one that counts as the branch's."""
        wanted = output_type(
            kind, regex=options.regex, schema=options.schema, grammar=options.grammar
        )
        index, path = self._next("gen", name)
        hints = self._take_hints()
        with self._named(path):
            self._require(start, wanted)
            attempts = [
                Attempts(
                    self._run,
                    self._path,
                    path,
                    seed_index,
                    name,
                    self.parent,
                    hints,
                )
                for seed_index in range(index, index + SAMPLE_STRIDE * options.n, SAMPLE_STRIDE)
            ]
            if len(attempts) == 1:
                outputs = [await attempts[0].run(start, kind, wanted, options)]
            else:
                outputs = await asyncio.gather(
                    *(one.run(start, kind, wanted, options) for one in attempts)
                )
        self.parent = outputs[0].call_id
        self._run.tell(Value(path, name, outputs[0].value))
        return list(outputs)

    async def select(
        self,
        start: Transcript,
        name: str | None,
        options: Sequence[str],
        *,
        method: Method,
        temperature: float,
        then: str,
        timeout: float | None,  # noqa: ASYNC109
    ) -> tuple[Choice, list[Part]]:
        """Choose one of some texts; return it with what the prompt goes on with."""
        listed = list(options)
        check_options(listed, method)
        index, path = self._next("select", name)
        hints = self._run.hints(**self._take_hints())
        call = ScoreCall(
            path=path,
            transcript=start,
            options=tuple(option + then for option in listed),
            closes_turn=start.is_chat,
            timeout_s=timeout,
            hints=hints,
        )
        with self._named(path):
            self._run.require(Capability.SCORE)
            done = await self._run.score(call)
            prior = None
            if method == "unconditional":
                empty = Transcript(turns=start.turns[-1:]) if start.is_chat else Transcript()
                prior_call = dataclasses.replace(call, transcript=empty, path=path + ".prior")
                prior = (await self._run.score(prior_call)).options
            seed = seed_of(self._run.options.seed, path, index)
            pick = seed / 2**63 if temperature > 0 else None
            choice = choose(listed, done.options, method, prior, pick)
            self._note(path, "select", name, choice, done.usage, start)
        self._run.tell(Value(path, name, choice))
        return choice, [Text(str(choice))]

    async def score(
        self,
        start: Transcript,
        text: str,
        *,
        timeout: float | None,  # noqa: ASYNC109
    ) -> Score:
        """Return how likely a text is."""
        if not text:
            raise InvalidRequestError("score needs a text", param="text")
        _, path = self._next("score", None)
        hints = self._run.hints(**self._take_hints())
        call = ScoreCall(
            path=path, transcript=start, options=(text,), timeout_s=timeout, hints=hints
        )
        with self._named(path):
            self._run.require(Capability.SCORE)
            done = await self._run.score(call)
            self._note(path, "score", None, text, done.usage, start)
        [one] = done.options
        return Score(text, one.token_ids, one.logprobs)

    async def warm(self, transcript: Transcript) -> None:
        """Wait until a prompt is in the cache."""
        _, path = self._next("commit", None)
        hints = self._run.hints(**self._take_hints())
        with self._named(path):
            if not transcript.is_empty:
                done = await self._run.warm(transcript, self.parent, hints)
                self.parent = done.call_id
                self._note(path, "warm", None, "", done.usage, transcript)

    def _next(self, kind: str, name: str | None) -> tuple[int, str]:
        index = self._count
        self._count += 1
        return index, self._path.call(kind, name, index)

    def _take_hints(self) -> dict[str, Any]:
        hints, self._hints = self._hints, {}
        return hints

    def _require(self, start: Transcript, wanted: OutputType) -> None:
        self._run.require(Capability.CHAT if start.is_chat else Capability.PLAIN)
        if wanted.constraint is None:
            return
        spec, schema = wanted.constraint.spec, wanted.constraint.schema
        if isinstance(spec, GrammarTextSpec):
            self._run.require(Capability.GRAMMAR)
        elif isinstance(spec, RegexSpec | ChoiceSpec) and schema is None:
            self._run.require(Capability.REGEX)
        else:
            self._run.require(Capability.JSON)

    def _note(
        self,
        path: str,
        kind: str,
        name: str | None,
        text: str,
        usage: CallUsage,
        transcript: Transcript,
    ) -> None:
        branch = self._path.steps
        self._run.note(
            CallRecord(path, kind, branch, name, str(text), usage, transcript=transcript)
        )

    @contextmanager
    def _named(self, path: str) -> Iterator[None]:
        """Let every failure say which call it came from."""
        try:
            yield
        except RadixServeError as failure:
            if not any(note.startswith("in ") for note in getattr(failure, "__notes__", ())):
                failure.add_note(f"in {path}")
            raise
