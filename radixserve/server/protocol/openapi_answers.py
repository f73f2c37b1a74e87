"""What each route answers, as models for the description in ``/openapi.json``.

They say which fields are always there; answers are written by the writers, and a test holds the
answers to these models.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Answer(BaseModel):
    """A JSON object of this server; it may have more fields than the description names."""

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True)


class ErrorDetails(Answer):
    """What is wrong."""

    message: str
    type: str
    param: str | None
    """The field at fault."""
    code: str
    """What a program can tell failures apart by."""


class Error(Answer):
    """A failure."""

    error: ErrorDetails


class AnthropicErrorDetails(Answer):
    """What is wrong."""

    type: str
    message: str


class AnthropicError(Answer):
    """A failure, in the words of Anthropic's API."""

    type: Literal["error"]
    error: AnthropicErrorDetails


class StatusAnswer(Answer):
    """Whether the server is alive, or takes requests."""

    status: str


class VersionAnswer(Answer):
    """Which radixserve this is."""

    version: str


class ModelAnswer(Answer):
    """The served model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class ModelsAnswer(Answer):
    """The served models."""

    object: Literal["list"]
    data: list[ModelAnswer]


class CachedTokens(Answer):
    """Where prompt tokens came from."""

    cached_tokens: int


class UsageAnswer(Answer):
    """The tokens of a call."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


class CompletionChoice(Answer):
    """One continuation of one prompt."""

    index: int
    text: str
    logprobs: dict[str, Any] | None
    finish_reason: str | None


class CompletionAnswer(Answer):
    """The answer of ``/v1/completions``."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageAnswer


class ChatMessageAnswer(Answer):
    """The assistant's message."""

    role: Literal["assistant"]
    content: str | None


class ChatChoice(Answer):
    """One answer to a conversation."""

    index: int
    message: ChatMessageAnswer
    logprobs: dict[str, Any] | None
    finish_reason: str | None


class ChatAnswer(Answer):
    """The answer of ``/v1/chat/completions``."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageAnswer


class MessageUsage(Answer):
    """The tokens of a message; those of the prompt are counted once, in one of three places."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int


class MessageAnswer(Answer):
    """The answer of ``/v1/messages``."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[dict[str, Any]]
    stop_reason: str | None
    stop_sequence: str | None
    usage: MessageUsage


class TokenCountAnswer(Answer):
    """The answer of ``/v1/messages/count_tokens``."""

    input_tokens: int


class ResponseUsage(Answer):
    """The tokens of a response."""

    input_tokens: int
    input_tokens_details: CachedTokens
    output_tokens: int
    total_tokens: int


class ResponseAnswer(Answer):
    """The answer of ``/v1/responses``."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["completed", "incomplete", "in_progress"]
    model: str
    output: list[dict[str, Any]]
    usage: ResponseUsage | None


class OptionAnswer(Answer):
    """How likely one option is."""

    index: int
    text: str
    token_ids: list[int]
    token_logprobs: list[float]
    logprob: float
    mean_logprob: float
    score: float
    """What options are compared by."""
    probability: float
    """The option's share among the options."""
    is_greedy: bool
    prompt_tokens: int
    """Of the request that scored it; 0 where others had scored all its tokens."""
    cached_tokens: int


class ScoreAnswer(Answer):
    """The answer of ``/v1/score``."""

    id: str
    object: Literal["score"]
    model: str
    normalization: str
    options: list[OptionAnswer]
    best: int
    usage: UsageAnswer


class TokensAnswer(Answer):
    """The answer of ``/tokenize``."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class TokenizerAnswer(Answer):
    """The answer of ``/tokenizer``."""

    model: str
    max_model_len: int
    tokenizer: str
    """The content of a ``tokenizer.json``."""
    named_tokens: dict[str, str]
    adds_bos: bool | None
    eos_token_ids: list[int]
    chat_templates: dict[str, str]
    samples: dict[str, list[int] | None]
    """Ids of a text and of a chat, to find out whether a client encodes as the server does."""


class ForgetAnswer(Answer):
    """The answer of ``/generate/forget``."""

    forgotten: int


class TextAnswer(Answer):
    """The answer of ``/detokenize``."""

    prompt: str
    text: str


class GenerateFacts(Answer):
    """What is told of one generated text."""

    id: str
    finish_reason: dict[str, Any] | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    forced_tokens: int


class GenerateAnswer(Answer):
    """The answer of ``/generate`` to one prompt; several have a list of them."""

    text: str
    output_ids: list[int]
    meta_info: GenerateFacts


class NamedAnswer(Answer):
    """An answer about the cache or its users; `object` says of what kind."""

    object: str


class ApiDescription(Answer):
    """This description."""

    openapi: str = Field(pattern=r"^3\.1\.")
    info: dict[str, Any]
    paths: dict[str, Any]


class FileAnswer(Answer):
    """A file."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    filename: str
    purpose: str


class DeletedAnswer(Answer):
    """A file that is gone."""

    id: str
    object: Literal["file"]
    deleted: bool


class BatchAnswer(Answer):
    """A batch."""

    id: str
    object: Literal["batch"]
    endpoint: str
    input_file_id: str
    completion_window: str
    status: str
    output_file_id: str | None
    """Of the answers, once the batch has ended."""
    error_file_id: str | None
    """Of the failures."""
    created_at: int
    expires_at: int


class ListAnswer(Answer):
    """A page of a list."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    has_more: bool
