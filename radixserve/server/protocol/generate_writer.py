"""The answers of ``POST /generate``.

    {"text": ..., "output_ids": [...], "meta_info": {"id": ..., "finish_reason": ..., ...}}

Log-probabilities are triples: [value, token id, text or null]; the first token of a prompt has
null for a value.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from radixserve.server.protocol.logprobs import LEAST_LOGPROB
from radixserve.types import FinishReason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve.engine.request import TextDelta
    from radixserve.server.protocol.logprobs import TokenNames
    from radixserve.types import TokenId, TokenLogprob


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateShape:
    """What all answers of one call have in common.

    Attributes:
        has_logprobs: Whether log-probabilities are told.
        num_top: Likeliest tokens told beside each token.
        prompt_start: The first prompt position told of; None tells of none.
        names: Spells tokens; None leaves their text out.
        is_indexed: Whether events say which answer they belong to.
    """

    has_logprobs: bool
    num_top: int
    prompt_start: int | None
    names: TokenNames | None
    is_indexed: bool


class GenerateWriter:
    """Writes one answer.

    Args:
        index: Its place among the answers.
        name: Of its request.
        prompt_ids: Of its request.
    """

    def __init__(
        self, shape: GenerateShape, *, index: int, name: str, prompt_ids: Sequence[TokenId]
    ) -> None:
        self._shape = shape
        self._index = index
        self._name = name
        self._prompt_ids = prompt_ids
        self._deltas: list[TextDelta] = []

    def push(self, delta: TextDelta) -> list[dict[str, Any]]:
        """Return the event of a delta. Mutates: the writer."""
        event = self._json(delta, with_prompt=not self._deltas)
        self._deltas.append(delta)
        return [{**event, "index": self._index} if self._shape.is_indexed else event]

    def whole(self) -> dict[str, Any]:
        """Return the complete answer."""
        return self._json(_joined(self._deltas), with_prompt=True)

    def _json(self, delta: TextDelta, *, with_prompt: bool) -> dict[str, Any]:
        facts = {
            "id": self._name,
            "finish_reason": _finish_json(delta),
            "prompt_tokens": delta.usage.prompt_tokens,
            "cached_tokens": delta.usage.cached_tokens,
            "completion_tokens": delta.usage.completion_tokens,
            "forced_tokens": delta.usage.forced_tokens,
        }
        if self._shape.has_logprobs:
            facts |= self._logprobs(delta.logprobs, "output")
            if with_prompt and self._shape.prompt_start is not None:
                facts |= self._prompt_logprobs(delta.prompt_logprobs)
        return {"text": delta.text, "output_ids": list(delta.token_ids), "meta_info": facts}

    def _prompt_logprobs(self, entries: Sequence[TokenLogprob]) -> dict[str, Any]:
        told = self._logprobs(entries, "input")
        if self._shape.prompt_start == 0:
            first = self._prompt_ids[0]
            told["input_token_logprobs"].insert(0, [None, first, self._text_of(first)])
            if self._shape.num_top:
                told["input_top_logprobs"].insert(0, None)
        return told

    def _logprobs(self, entries: Sequence[TokenLogprob], whose: str) -> dict[str, Any]:
        told: dict[str, Any] = {
            f"{whose}_token_logprobs": [
                self._triple(entry.token_id, entry.logprob) for entry in entries
            ]
        }
        if self._shape.num_top:
            told[f"{whose}_top_logprobs"] = [
                [self._triple(*pair) for pair in entry.top[: self._shape.num_top]]
                for entry in entries
            ]
        return told

    def _triple(self, token_id: TokenId, logprob: float) -> list[Any]:
        return [max(logprob, LEAST_LOGPROB), token_id, self._text_of(token_id)]

    def _text_of(self, token_id: TokenId) -> str | None:
        return None if self._shape.names is None else self._shape.names.in_completions(token_id)


def _joined(deltas: Sequence[TextDelta]) -> TextDelta:
    """Return one delta that says what all of them say."""
    return replace(
        deltas[-1],
        text="".join([delta.text for delta in deltas]),
        token_ids=tuple(token for delta in deltas for token in delta.token_ids),
        logprobs=tuple(entry for delta in deltas for entry in delta.logprobs),
        prompt_logprobs=tuple(entry for delta in deltas for entry in delta.prompt_logprobs),
    )


def _finish_json(delta: TextDelta) -> dict[str, Any] | None:
    """Return why the output ended; `matched` is the stop string or the stop token."""
    if delta.finish_reason is None:
        return None
    if delta.finish_reason is FinishReason.STOP:
        ends_by_token = delta.stop_reason is None and delta.token_ids
        return {
            "type": "stop",
            "matched": delta.token_ids[-1] if ends_by_token else delta.stop_reason,
        }
    kind = "timeout" if delta.finish_reason is FinishReason.TIMEOUT else "length"
    return {"type": kind, "length": delta.usage.completion_tokens}
