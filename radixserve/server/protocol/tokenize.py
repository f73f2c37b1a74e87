"""The bodies of ``POST /tokenize`` and ``POST /detokenize``."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from radixserve.server.protocol.body import RequestBody, one_of
from radixserve.server.protocol.chat import MAX_MESSAGES, ChatMessage
from radixserve.server.protocol.fields import TokenIds, parse_body
from radixserve.server.protocol.refusal import MISSING, refusal


class TokenizeRequest(RequestBody):
    """A text, or a conversation that the model's chat template makes a text of."""

    model_config = one_of("prompt", "messages")
    model: str | None = None
    """The served model when left out."""
    prompt: str | None = None
    messages: (
        Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
        | None
    ) = None
    add_special_tokens: bool = True
    """Whether the tokenizer may add its begin-of-sequence token to a `prompt`."""
    add_generation_prompt: bool | None = None
    """Whether the template opens the assistant's turn; true unless a final message goes on."""
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    tools: list[dict[str, Any]] | None = None
    """The tools that the template shows to the model."""
    return_token_strs: bool = False
    """Also return each token as the vocabulary writes it."""

    @property
    def opens_turn(self) -> bool:
        """Whether the text ends with the start of the assistant's turn."""
        if self.add_generation_prompt is None:
            return not self.continue_final_message
        return self.add_generation_prompt

    @property
    def text_len(self) -> int:
        """Characters of the prompt, or of all messages."""
        if self.messages is None:
            return len(self.prompt or "")
        return sum(message.text_len for message in self.messages)


class DetokenizeRequest(RequestBody):
    """Token ids to be read as text."""

    model: str | None = None
    """The served model when left out."""
    tokens: TokenIds
    skip_special_tokens: bool = False
    """Leave out control tokens; by default the text is the exact inverse of `/tokenize`."""


def parse_tokenize(body: Any, *, ignore_unknown: bool = False) -> TokenizeRequest:
    """Return the typed request; see `parse_body` for what it raises.

    Raises:
        InvalidRequestError: also unless exactly one of `prompt` and `messages` is there.
    """
    parsed = parse_body(body, TokenizeRequest, {}, ignore_unknown=ignore_unknown)
    if parsed.prompt is None and parsed.messages is None:
        raise refusal("prompt: field required, unless messages is sent.", "prompt", MISSING)
    if parsed.prompt is not None and parsed.messages is not None:
        raise refusal("prompt and messages exclude each other; send one.", "prompt")
    return parsed


def parse_detokenize(body: Any, *, ignore_unknown: bool = False) -> DetokenizeRequest:
    """Return the typed request; see `parse_body` for what it raises."""
    return parse_body(body, DetokenizeRequest, {}, ignore_unknown=ignore_unknown)
