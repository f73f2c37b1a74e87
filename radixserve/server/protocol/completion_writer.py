"""Choices of ``/v1/completions``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from radixserve.server.protocol.choices import FINISH_REASONS
from radixserve.server.protocol.echo import TokenOffsets
from radixserve.server.protocol.logprobs import completion_logprobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve.engine.request import TextDelta
    from radixserve.server.protocol.echo import Echo
    from radixserve.server.protocol.logprobs import TokenNames
    from radixserve.text.tokenizer import Tokenizer
    from radixserve.types import TokenLogprob


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionShape:
    """Makes the writers of one answer.

    Attributes:
        tokenizer: Of the served model.
        names: How tokens are written.
        num_logprobs: Likeliest tokens told beside each token; None tells no log-probabilities.
        skip_special_tokens: Whether special tokens are no part of the text.
        echoes: What the choices of each prompt begin with; empty if they do not repeat it.
        per_prompt: Choices of each prompt.
    """

    tokenizer: Tokenizer
    names: TokenNames
    num_logprobs: int | None = None
    skip_special_tokens: bool = True
    echoes: Sequence[Echo] = ()
    per_prompt: int = 1

    whole_kind = "text_completion"
    chunk_kind = "text_completion"

    def writer(self, index: int) -> CompletionWriter:
        """Return the writer of the choice of that index."""
        echo = self.echoes[index // self.per_prompt] if self.echoes else None
        if self.num_logprobs is None:
            return CompletionWriter(index, echo=echo)
        offsets = TokenOffsets(
            self.tokenizer,
            skip_special_tokens=self.skip_special_tokens,
            start=len(echo.text) if echo else 0,
        )
        logprobs = CompletionLogprobs(self.num_logprobs, self.names, offsets)
        return CompletionWriter(index, echo=echo, logprobs=logprobs)


class CompletionLogprobs:
    """Writes the log-probabilities of one choice, a run of tokens at a time.

    Args:
        num_top: Likeliest tokens told at each place.
        names: How tokens are written.
        offsets: Of the output's tokens in the choice's text.
    """

    def __init__(self, num_top: int, names: TokenNames, offsets: TokenOffsets) -> None:
        self._num_top = num_top
        self._names = names
        self._offsets = offsets
        self._all: dict[str, list[Any]] = {}

    def of_prompt(self, echo: Echo, delta: TextDelta) -> dict[str, Any]:
        """Return those of the prompt, which come whole with the first delta. Mutates: the sum."""
        entries: list[TokenLogprob | int] = [*echo.ids[:1], *delta.prompt_logprobs]
        return self._add(completion_logprobs(entries, echo.offsets, self._num_top, self._names))

    def of_output(self, delta: TextDelta) -> dict[str, Any] | None:
        """Return those of a delta's tokens; None if there are none. Mutates: the sum."""
        if not delta.logprobs:
            return None
        offsets = [self._offsets.of(entry.token_id) for entry in delta.logprobs]
        return self._add(completion_logprobs(delta.logprobs, offsets, self._num_top, self._names))

    def whole(self) -> dict[str, Any]:
        """Return all that were told."""
        return self._all or completion_logprobs([], [], self._num_top, self._names)

    def _add(self, told: dict[str, Any]) -> dict[str, Any]:
        for name, values in told.items():
            self._all.setdefault(name, []).extend(values)
        return told


class CompletionWriter:
    """Writes one choice: its prompt if that is repeated, its text, then the finish reason.

    Args:
        index: Of the choice.
        echo: What it begins with.
        logprobs: Writes its log-probabilities, if they are asked for.
    """

    def __init__(
        self, index: int, *, echo: Echo | None = None, logprobs: CompletionLogprobs | None = None
    ) -> None:
        self._index = index
        self._echo = echo
        self._logprobs = logprobs
        self._texts: list[str] = []
        self._finish_reason: str | None = None

    def push(self, delta: TextDelta) -> list[dict[str, Any]]:
        """Return the chunks of a delta."""
        chunks = []
        if self._echo is not None:
            chunks.append(self._chunk_of_prompt(self._echo, delta))
            self._echo = None
        logprobs = None if self._logprobs is None else self._logprobs.of_output(delta)
        if delta.text or logprobs:
            chunks.append(self._chunk(delta.text, logprobs))
        if delta.finish_reason is not None:
            self._finish_reason = FINISH_REASONS[delta.finish_reason]
            chunks.append(self._choice("", None, self._finish_reason))
        return chunks

    def whole(self) -> dict[str, Any]:
        """Return the complete choice."""
        logprobs = None if self._logprobs is None else self._logprobs.whole()
        return self._choice("".join(self._texts), logprobs, self._finish_reason)

    def _chunk_of_prompt(self, echo: Echo, delta: TextDelta) -> dict[str, Any]:
        logprobs = None if self._logprobs is None else self._logprobs.of_prompt(echo, delta)
        return self._chunk(echo.text, logprobs)

    def _chunk(self, text: str, logprobs: dict[str, Any] | None) -> dict[str, Any]:
        self._texts.append(text)
        return self._choice(text, logprobs, None)

    def _choice(
        self, text: str, logprobs: dict[str, Any] | None, finish_reason: str | None
    ) -> dict[str, Any]:
        return {
            "index": self._index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }
