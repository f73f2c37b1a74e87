"""Record a run's calls, and run again without a model.

    with rs.record("run.jsonl"):            with rs.replay("run.jsonl"):
        await program(...)                      await program(...)      # no model is asked

A call is found by its path, so branches may finish in any order. In a strict replay a call that was
not recorded, or whose prompt or parameters differ, raises and names itself; else it is run.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

from radixserve.errors import ReplayMismatchError
from radixserve.frontend.backends.protocol import CallUsage, GenDone, OptionTokens, ScoreDone
from radixserve.frontend.pieces import Generated, Text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO

    from radixserve.frontend.backends.protocol import GenCall, ScoreCall
    from radixserve.frontend.pieces import Part

_current: ContextVar[Recording | None] = ContextVar("radixserve_recording", default=None)


class Recording:
    """Calls by path: those that were read, and where new ones are written.

    Args:
        known: Recorded lines by (path, occurrence).
        file: New calls are appended to it; None keeps nothing.
        strict: Whether a call that is not known is an error.
    """

    def __init__(
        self, known: dict[tuple[str, int], dict[str, Any]], file: TextIO | None, *, strict: bool
    ) -> None:
        self._known = known
        self._file = file
        self._strict = strict
        self._seen: dict[str, int] = {}
        self._places: dict[int, int] = {}

    def find(self, call: GenCall) -> GenDone | None:
        """Return a generation's recorded end; None if it has to be run.

        Raises:
            ReplayMismatchError: it was not recorded, or differs from what was (strict).
        """
        line = self._line(call)
        return None if line is None else _generation(line)

    def find_score(self, call: ScoreCall) -> ScoreDone | None:
        """Return recorded scores; see `find`."""
        line = self._line(call)
        return None if line is None else _scores(line)

    def keep(self, call: GenCall, done: GenDone) -> None:
        """Write a generation down."""
        parts = [
            {"text": part.text, "ids": part.token_ids if isinstance(part, Generated) else None}
            for part in done.parts
        ]
        self._write(
            call,
            text=done.text,
            parts=parts,
            finish_reason=done.finish_reason,
            logprobs=done.logprobs,
            usage=dataclasses.asdict(done.usage),
        )

    def keep_score(self, call: ScoreCall, done: ScoreDone) -> None:
        """Write scores down."""
        options = [{"ids": one.token_ids, "logprobs": one.logprobs} for one in done.options]
        self._write(call, options=options, usage=dataclasses.asdict(done.usage))

    def _line(self, call: GenCall | ScoreCall) -> dict[str, Any] | None:
        place = self._seen.get(call.path, 0)
        self._seen[call.path] = place + 1
        self._places[id(call)] = place
        if not self._known and not self._strict:
            return None
        line = self._known.get((call.path, place))
        why = "it was not recorded" if line is None else None
        if line is not None and line["digest"] != _digest(call):
            why = "its prompt or its parameters were others when it was recorded"
        if why is None:
            return line
        if self._strict:
            raise ReplayMismatchError(f"{call.path}: {why}")
        return None

    def _write(self, call: GenCall | ScoreCall, **fields: Any) -> None:
        if self._file is None:
            return
        place = self._places.pop(id(call), 0)
        line = {"path": call.path, "place": place, "digest": _digest(call), **fields}
        self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
        self._file.flush()


def current_recording() -> Recording | None:
    """Return what `record` or `replay` opened in this context."""
    return _current.get()


@contextmanager
def record(file: str | FilePath) -> Iterator[Recording]:
    """Write every call of this context to a file, anew."""
    with (
        FilePath(file).open("w", encoding="utf-8") as out,
        _opened(Recording({}, out, strict=False)) as recording,
    ):
        yield recording


@contextmanager
def replay(file: str | FilePath, *, strict: bool = True) -> Iterator[Recording]:
    """Answer every call of this context from a file.

    Args:
        strict: Refuse a call that was not recorded so; else it is run.
    Raises:
        ReplayMismatchError: from the call in question.
    """
    known: dict[tuple[str, int], dict[str, Any]] = {}
    for text in FilePath(file).read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        known[line["path"], line["place"]] = line
    with _opened(Recording(known, None, strict=strict)) as recording:
        yield recording


@contextmanager
def _opened(recording: Recording) -> Iterator[Recording]:
    token = _current.set(recording)
    try:
        yield recording
    finally:
        _current.reset(token)


def _digest(call: GenCall | ScoreCall) -> str:
    """Return a digest of all that decides a call's outcome.

    Not its hints, its time limit, or its parent's name, which is another in each run.
    """
    facts = {
        field.name: getattr(call, field.name)
        for field in dataclasses.fields(call)
        if field.name not in ("hints", "timeout_s", "path", "parent")
    }
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def _generation(line: dict[str, Any]) -> GenDone:
    parts: list[Part] = [
        Text(part["text"]) if part["ids"] is None else Generated(part["text"], tuple(part["ids"]))
        for part in line["parts"]
    ]
    return GenDone(
        text=line["text"],
        parts=tuple(parts),
        finish_reason=line["finish_reason"],
        usage=CallUsage(**line["usage"]),
        logprobs=tuple(line["logprobs"]),
    )


def _scores(line: dict[str, Any]) -> ScoreDone:
    options = (OptionTokens(tuple(one["ids"]), tuple(one["logprobs"])) for one in line["options"])
    return ScoreDone(tuple(options), CallUsage(**line["usage"]))
