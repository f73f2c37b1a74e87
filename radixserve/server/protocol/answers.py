"""The JSON of the answers, in OpenAI's shapes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import radixserve

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from radixserve.engine.info import ModelInfo
    from radixserve.engine.request import Usage
    from radixserve.server.protocol.choices import ChoiceShape


def usage_json(usages: Iterable[Usage]) -> dict[str, Any]:
    """Return the usage of a whole call: the sum over its prompts.

    `cached_tokens` is always there, zero where nothing was reused.
    """
    totals = list(usages)
    prompt = sum(usage.prompt_tokens for usage in totals)
    completion = sum(usage.completion_tokens for usage in totals)
    cached = sum(usage.cached_tokens for usage in totals)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def fingerprint(info: ModelInfo) -> str:
    """Return a name for what decides the output besides the request."""
    facts = f"{radixserve.__version__}|{info.name}|{info.dtype}|{info.max_model_len}"
    return "fp_" + hashlib.sha256(facts.encode()).hexdigest()[:10]


def model_json(info: ModelInfo) -> dict[str, Any]:
    """Return one entry of ``GET /v1/models``."""
    return {
        "id": info.name,
        "object": "model",
        "created": info.created,
        "owned_by": "radixserve",
        "root": info.name,
        "parent": None,
        "max_model_len": info.max_model_len,
        "dtype": info.dtype,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """What all JSON objects of one answer have in common, for either route.

    Attributes:
        answer_id: ``cmpl-...`` or ``chatcmpl-...``.
        created: Seconds since 1970.
        shape: How the route writes its choices.
        has_usage: Whether chunks carry the key `usage`, null but for the last.
    """

    answer_id: str
    created: int
    model: str
    system_fingerprint: str
    shape: ChoiceShape
    has_usage: bool = False

    def whole(self, choices: Sequence[dict[str, Any]], usage: dict[str, Any]) -> dict[str, Any]:
        """Return the answer of a call that does not stream."""
        return {**self._head(self.shape.whole_kind), "choices": choices, "usage": usage}

    def chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        """Return one event of a stream."""
        chunk = {**self._head(self.shape.chunk_kind), "choices": [choice]}
        return {**chunk, "usage": None} if self.has_usage else chunk

    def usage_chunk(self, usage: dict[str, Any]) -> dict[str, Any]:
        """Return the event that carries the usage and no choice."""
        return {**self._head(self.shape.chunk_kind), "choices": [], "usage": usage}

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.answer_id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.system_fingerprint,
        }
