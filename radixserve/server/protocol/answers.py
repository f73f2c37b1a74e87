"""The JSON of the answers, in OpenAI's shapes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import radixserve

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve.engine.info import ModelInfo
    from radixserve.server.protocol.beam import BeamOptions
    from radixserve.server.protocol.choices import ChoiceShape
    from radixserve.server.protocol.fields import GenerationFields


PROMPT_FACTS = ("prompt_token_ids", "prompt_logprobs")
"""What a choice tells of its prompt."""


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
class AnswerOptions:
    """What a call wants to be told, and of how many sequences.

    Attributes:
        made: Sequences generated for each prompt; those of one prompt are neighbours.
        kept: Choices for each prompt: the best of those made, if fewer.
        beam: How to search for the choices, if they are not sampled.
        drops_output: Whether only the prompt is told of.
        returns_token_ids: Whether choices carry the ids of prompt and output.
        names_tokens_by_id: How tokens in log-probabilities are written.
        num_prompt_tops: Likeliest tokens told beside each prompt token; None tells nothing.
        first_prompt_logprob: The prompt position that this begins at.
        has_usage: Whether a stream ends with a chunk of the usage.
        has_running_usage: Whether every chunk has the usage so far.
    """

    made: int = 1
    kept: int = 1
    beam: BeamOptions | None = None
    drops_output: bool = False
    returns_token_ids: bool = False
    names_tokens_by_id: bool = False
    num_prompt_tops: int | None = None
    first_prompt_logprob: int = 0
    has_usage: bool = False
    has_running_usage: bool = False

    @property
    def has_token_facts(self) -> bool:
        """Whether choices tell of token ids, or of their prompt."""
        return self.returns_token_ids or self.num_prompt_tops is not None

    @classmethod
    def of(cls, fields: GenerationFields) -> AnswerOptions:
        """Return what a request asks for."""
        streaming = fields.stream_options
        return cls(
            made=fields.num_siblings,
            kept=fields.n,
            beam=fields.beam,
            drops_output=fields.scores_only,
            returns_token_ids=fields.return_token_ids,
            names_tokens_by_id=fields.return_tokens_as_token_ids,
            num_prompt_tops=fields.prompt_logprobs,
            first_prompt_logprob=fields.prompt_logprob_start,
            has_usage=fields.include_usage,
            has_running_usage=streaming is not None and streaming.continuous_usage_stats,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """What all JSON objects of one answer have in common, for either route.

    Attributes:
        answer_id: ``cmpl-...`` or ``chatcmpl-...``.
        created: Seconds since 1970.
        shape: How the route writes its choices.
        options: What else the call wants.
    """

    answer_id: str
    created: int
    model: str
    system_fingerprint: str
    shape: ChoiceShape
    options: AnswerOptions = AnswerOptions()

    def whole(self, choices: Sequence[dict[str, Any]], usage: dict[str, Any]) -> dict[str, Any]:
        """Return the answer of a call that does not stream."""
        facts = self._prompt_facts(choices)
        return {**self._head(self.shape.whole_kind), "choices": choices, "usage": usage, **facts}

    def chunk(self, choice: dict[str, Any], usage: dict[str, Any] | None) -> dict[str, Any]:
        """Return one event of a stream.

        Args:
            usage: So far; told if the call wants it.
        """
        facts = self._prompt_facts([choice])
        chunk = {**self._head(self.shape.chunk_kind), "choices": [choice], **facts}
        has_key = self.options.has_usage or self.options.has_running_usage
        return {**chunk, "usage": usage} if has_key else chunk

    def usage_chunk(self, usage: dict[str, Any]) -> dict[str, Any]:
        """Return the event that carries the usage and no choice."""
        return {**self._head(self.shape.chunk_kind), "choices": [], "usage": usage}

    def _prompt_facts(self, choices: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Take a conversation's facts out of its choices: there is one prompt, and they stand
        beside the choices. Completions may have several prompts and keep them.
        """
        if self.shape.whole_kind != "chat.completion":
            return {}
        taken = [
            {name: choice.pop(name) for name in PROMPT_FACTS if name in choice}
            for choice in choices
        ]
        return taken[0] if taken else {}

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.answer_id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.system_fingerprint,
        }
