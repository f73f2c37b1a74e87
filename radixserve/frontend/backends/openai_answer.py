"""What an OpenAI-compatible server answers to a generation, chunk by chunk."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from radixserve.errors import BackendError
from radixserve.frontend.backends.openai_body import VALUE
from radixserve.frontend.backends.protocol import CallUsage, GenDone
from radixserve.frontend.pieces import Generated

if TYPE_CHECKING:
    from collections.abc import Mapping


class Answer:
    """One answer.

    Args:
        started: When the call began, by the performance counter.
        is_wrapped: The output is an object around the value: it is told when it is whole.
    """

    def __init__(self, started: float, *, is_wrapped: bool) -> None:
        self.text = ""
        """As the model wrote it, so far."""
        self._started = started
        self._is_wrapped = is_wrapped
        self._first_s = 0.0
        self._reason = ""
        self._usage: Mapping[str, Any] | None = None
        self._logprobs: list[float] = []

    def push(self, chunk: Mapping[str, Any]) -> str:
        """Take in a chunk; return the text that can be told already. Mutates: this."""
        self._usage = chunk.get("usage") or self._usage
        told = ""
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            text = choice.get("text") or delta.get("content") or ""
            self._logprobs += _logprobs(choice.get("logprobs"))
            self._reason = choice.get("finish_reason") or self._reason
            told += text
        if told and not self._first_s:
            self._first_s = time.perf_counter() - self._started
        self.text += told
        return "" if self._is_wrapped else told

    def cut(self) -> None:
        """The caller's time is up. Mutates: this."""
        self._reason = "timeout"

    def rest(self) -> str:
        """Return what has not been told yet, at the end."""
        return self._value() if self._is_wrapped else ""

    def done(self) -> GenDone:
        """Return the end of the generation.

        Raises:
            BackendError: the stream ended without one.
        """
        if not self._reason:
            raise BackendError("the server's answer has no finish_reason")
        text = self._value() if self._is_wrapped else self.text
        took = time.perf_counter() - self._started
        return GenDone(
            text=text,
            parts=(Generated(text),),
            finish_reason=self._reason if self._reason in ("length", "timeout") else "stop",
            usage=usage_of(self._usage, self._first_s, took),
            logprobs=tuple(self._logprobs),
        )

    def _value(self) -> str:
        """Return the value in the object; the text as it is, if it has been cut."""
        try:
            value = json.loads(self.text)[VALUE]
        except (ValueError, KeyError, TypeError):
            return self.text
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def usage_of(usage: Mapping[str, Any] | None, first_s: float, total_s: float) -> CallUsage:
    """Return what a call cost, as far as the server tells."""
    usage = usage or {}
    read = usage.get("prompt_tokens_details") or {}
    written = usage.get("completion_tokens_details") or {}
    return CallUsage(
        input_tokens=usage.get("prompt_tokens") or 0,
        cached_tokens=read.get("cached_tokens") or 0,
        output_tokens=usage.get("completion_tokens") or 0,
        forced_tokens=written.get("forced_tokens") or 0,
        ttft_s=first_s,
        total_s=total_s,
    )


def whole_usage(usage: Mapping[str, Any] | None, total_s: float) -> CallUsage:
    """Return what a call cost that was answered in one piece."""
    return usage_of(usage, total_s, total_s)


def _logprobs(told: Mapping[str, Any] | None) -> list[float]:
    """Return the log-probabilities of a chunk's tokens, of either route."""
    told = told or {}
    if told.get("content"):
        return [token["logprob"] for token in told["content"]]
    return list(told.get("token_logprobs") or ())
