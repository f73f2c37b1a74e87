"""The body of ``POST /v1/completions``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Discriminator, Field, Tag

from radixserve.server.protocol.body import INT32_MAX
from radixserve.server.protocol.fields import (
    MAX_N,
    GenerationFields,
    TokenIds,
    TopCount,
    parse_fields,
)
from radixserve.server.protocol.refusal import refusal
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
    """One call of ``POST /v1/completions``: one prompt or several, `n` choices for each."""

    prompt: PromptField
    max_tokens: Annotated[int, Field(ge=0, le=INT32_MAX)] | None = None
    """`DEFAULT_MAX_TOKENS` when left out, less where the context ends before. 0 only asks about
    the prompt, with `echo` or `prompt_logprobs`."""
    echo: bool = False
    """Begin each choice with its prompt."""
    logprobs: TopCount = None
    """Tell each token's log-probability, and those of so many likeliest tokens."""
    best_of: Annotated[int, Field(ge=1, le=MAX_N)] | None = None
    """Generate so many for each prompt and return the `n` of the highest log-probability per
    token. The token that ends an output is not counted."""
    add_special_tokens: bool = True
    """Whether the tokenizer may add its begin-of-sequence token to a text."""

    @property
    def prompts(self) -> Sequence[str | list[int]]:
        """The prompts, in order."""
        prompt = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        if isinstance(prompt[0], int):
            return [prompt]
        return prompt

    @property
    def num_siblings(self) -> int:
        """Sequences generated for each prompt."""
        return self.n if self.best_of is None else self.best_of

    @property
    def num_logprobs(self) -> int | None:
        """Likeliest tokens told beside each token."""
        return self.logprobs

    @property
    def num_echo_logprobs(self) -> int | None:
        """The same for the prompt's tokens."""
        return self.logprobs if self.echo else None

    @property
    def scores_only(self) -> bool:
        """Whether only the prompt is asked about."""
        return self.max_tokens == 0

    @property
    def asked_tokens(self) -> int | None:
        """Output tokens to be generated, if the caller says how many. Nothing is told of the one
        that a prompt needs to be looked at."""
        return 1 if self.scores_only else self.max_tokens

    def prompt_param(self, index: int) -> str:
        """Return the name of one prompt, as the caller would write it."""
        several = isinstance(self.prompt, list) and not isinstance(self.prompt[0], int)
        return f"prompt[{index}]" if several else "prompt"


def parse_completion(body: Any, *, ignore_unknown: bool = False) -> CompletionRequest:
    """Return the typed request; see `parse_fields` for what it raises.

    Raises:
        InvalidRequestError: also where two fields contradict each other.
    """
    parsed = parse_fields(
        body, CompletionRequest, COMPLETION_UNBUILT, ignore_unknown=ignore_unknown
    )
    _check_best_of(parsed)
    if parsed.scores_only:
        _check_scoring(parsed)
    return parsed


def _check_best_of(parsed: CompletionRequest) -> None:
    if parsed.num_siblings < parsed.n:
        raise refusal(
            f"best_of: input should be at least n ({parsed.n}); got {parsed.best_of}.", "best_of"
        )
    if parsed.stream and parsed.num_siblings > parsed.n:
        raise refusal(
            "best_of: which outputs are best is known when all have ended; "
            "a stream needs best_of equal to n.",
            "best_of",
        )


def _check_scoring(parsed: CompletionRequest) -> None:
    if not parsed.echo and parsed.prompt_logprobs is None:
        raise refusal("max_tokens: 0 needs echo or prompt_logprobs.", "max_tokens")
    if parsed.min_tokens:
        raise refusal("min_tokens: must be 0 where max_tokens is 0.", "min_tokens")
    if parsed.beam is not None:
        raise refusal("max_tokens: must be at least 1 with use_beam_search.", "max_tokens")
