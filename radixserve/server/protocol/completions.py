"""The body of ``POST /v1/completions``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Discriminator, Field, Tag

from radixserve.server.protocol.body import INT32_MAX
from radixserve.server.protocol.fields import GenerationFields, TokenIds, parse_fields
from radixserve.server.protocol.unbuilt import COMPLETION_UNBUILT

if TYPE_CHECKING:
    from collections.abc import Sequence

DEFAULT_MAX_TOKENS = 16
MAX_PROMPTS = 2048


def _branch_of_prompt(value: Any) -> str | None:
    """Name the union's branch by the first item, so that errors speak of the form meant."""
    if isinstance(value, str):
        return "<text>"
    if not isinstance(value, list) or not value:
        return "<texts>" if isinstance(value, list) else None
    if isinstance(value[0], list):
        return "<id_lists>"
    return "<texts>" if isinstance(value[0], str) else "<ids>"


NonEmptyIds = Annotated[TokenIds, Field(min_length=1)]
TextPrompts = Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)]
IdPrompts = Annotated[
    list[NonEmptyIds], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)
]
PromptField = Annotated[
    Annotated[str, Tag("<text>")]
    | Annotated[TextPrompts, Tag("<texts>")]
    | Annotated[NonEmptyIds, Tag("<ids>")]
    | Annotated[IdPrompts, Tag("<id_lists>")],
    Discriminator(
        _branch_of_prompt,
        custom_error_type="prompt_type",
        custom_error_message=(
            "Input should be a string, a list of strings, a list of token ids or a list of "
            "lists of token ids"
        ),
    ),
]


class CompletionRequest(GenerationFields):
    """One call of ``POST /v1/completions``: one prompt or several, one choice for each."""

    prompt: PromptField
    max_tokens: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None
    """`DEFAULT_MAX_TOKENS` when left out, less where the context ends before."""
    add_special_tokens: bool = True
    """Whether the tokenizer may add its begin-of-sequence token to a text."""

    @property
    def prompts(self) -> Sequence[str | list[int]]:
        """The prompts, one for each choice."""
        prompt = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        if isinstance(prompt[0], int):
            return [prompt]
        return prompt

    def prompt_param(self, index: int) -> str:
        """Return the name of one prompt, as the caller would write it."""
        several = isinstance(self.prompt, list) and not isinstance(self.prompt[0], int)
        return f"prompt[{index}]" if several else "prompt"


def parse_completion(body: Any, *, ignore_unknown: bool = False) -> CompletionRequest:
    """Return the typed request; see `parse_fields` for what it raises."""
    return parse_fields(body, CompletionRequest, COMPLETION_UNBUILT, ignore_unknown=ignore_unknown)
