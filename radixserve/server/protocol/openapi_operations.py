"""The routes of the server, as ``/openapi.json`` tells of them."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from radixserve.server.protocol import openapi_answers as answers
from radixserve.server.protocol.cache import (
    CacheQuery,
    ExplainBody,
    FlushBody,
    PinBody,
    RequestsQuery,
    TreeQuery,
    UnpinBody,
    WarmBody,
)
from radixserve.server.protocol.chat import ChatRequest
from radixserve.server.protocol.completions import CompletionRequest
from radixserve.server.protocol.generate import ForgetBody, GenerateBody
from radixserve.server.protocol.messages import MessagesPrompt, MessagesRequest
from radixserve.server.protocol.responses import ResponsesRequest
from radixserve.server.protocol.score import ScoreRequest
from radixserve.server.protocol.tokenize import DetokenizeRequest, TokenizeRequest

if TYPE_CHECKING:
    from pydantic import BaseModel


class Access(enum.Enum):
    """Whom a route serves where API keys are set."""

    ANYBODY = "anybody"
    CALLERS = "callers"
    ADMINS = "admins"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one path.

    Attributes:
        answer: What a success brings; None brings plain text.
        is_listed: Whether several prompts bring a list of answers.
        streams: Whether the answer may come as server-sent events.
        needs_body: Whether there must be a body, where there may be one.
    """

    method: str
    path: str
    tag: str
    summary: str
    body: type[BaseModel] | None = None
    query: type[BaseModel] | None = None
    answer: type[BaseModel] | None
    is_listed: bool = False
    streams: bool = False
    needs_body: bool = True
    access: Access = Access.CALLERS
    error: type[BaseModel] = answers.Error


def _post(
    path: str, tag: str, summary: str, body: type[BaseModel], answer: type[BaseModel]
) -> Operation:
    return Operation(method="post", path=path, tag=tag, summary=summary, body=body, answer=answer)


_TOKENIZER = Operation(
    method="get",
    path="/tokenizer",
    tag="tokens",
    summary="Give all that a client needs to encode texts and conversations by itself.",
    answer=answers.TokenizerAnswer,
)
_TOKENS = tuple(
    operation
    for root in ("", "/v1")
    for operation in (
        _post(
            f"{root}/tokenize",
            "tokens",
            "Say which tokens a text or a conversation has.",
            TokenizeRequest,
            answers.TokensAnswer,
        ),
        _post(
            f"{root}/detokenize",
            "tokens",
            "Say which text some tokens have.",
            DetokenizeRequest,
            answers.TextAnswer,
        ),
    )
)

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="get",
        path="/health",
        tag="server",
        summary="Say whether the engine is alive.",
        answer=answers.StatusAnswer,
        access=Access.ANYBODY,
    ),
    Operation(
        method="get",
        path="/ready",
        tag="server",
        summary="Say whether requests are taken now.",
        answer=answers.StatusAnswer,
        access=Access.ANYBODY,
    ),
    Operation(
        method="get",
        path="/metrics",
        tag="server",
        summary="Tell all metrics in Prometheus' text format.",
        answer=None,
    ),
    Operation(
        method="get",
        path="/version",
        tag="server",
        summary="Say which radixserve this is.",
        answer=answers.VersionAnswer,
    ),
    Operation(
        method="get",
        path="/openapi.json",
        tag="server",
        summary="Describe all routes.",
        answer=answers.ApiDescription,
    ),
    Operation(
        method="get",
        path="/v1/models",
        tag="models",
        summary="List the served model.",
        answer=answers.ModelsAnswer,
    ),
    Operation(
        method="get",
        path="/v1/models/{model}",
        tag="models",
        summary="Describe one model by its name.",
        answer=answers.ModelAnswer,
    ),
    Operation(
        method="post",
        path="/v1/completions",
        tag="generation",
        summary="Continue one prompt or several.",
        body=CompletionRequest,
        answer=answers.CompletionAnswer,
        streams=True,
    ),
    Operation(
        method="post",
        path="/v1/chat/completions",
        tag="generation",
        summary="Answer a conversation.",
        body=ChatRequest,
        answer=answers.ChatAnswer,
        streams=True,
    ),
    Operation(
        method="post",
        path="/v1/responses",
        tag="generation",
        summary="Answer a conversation, in the words of OpenAI's Responses API. Nothing is stored.",
        body=ResponsesRequest,
        answer=answers.ResponseAnswer,
        streams=True,
    ),
    Operation(
        method="post",
        path="/v1/messages",
        tag="generation",
        summary="Answer a conversation, in the words of Anthropic's API.",
        body=MessagesRequest,
        answer=answers.MessageAnswer,
        streams=True,
        error=answers.AnthropicError,
    ),
    Operation(
        method="post",
        path="/v1/messages/count_tokens",
        tag="tokens",
        summary="Say how many tokens a conversation has, in the words of Anthropic's API.",
        body=MessagesPrompt,
        answer=answers.TokenCountAnswer,
        error=answers.AnthropicError,
    ),
    Operation(
        method="post",
        path="/generate",
        tag="generation",
        summary="Continue texts or token ids.",
        body=GenerateBody,
        answer=answers.GenerateAnswer,
        is_listed=True,
        streams=True,
    ),
    _post(
        "/generate/forget",
        "generation",
        "Let go of calls that were kept to go on from.",
        ForgetBody,
        answers.ForgetAnswer,
    ),
    _post(
        "/v1/score",
        "generation",
        "Say how likely each of some options is after one prompt.",
        ScoreRequest,
        answers.ScoreAnswer,
    ),
    _TOKENIZER,
    *_TOKENS,
    Operation(
        method="get",
        path="/cache",
        tag="cache",
        summary="Tell the cache's sizes and counters, and the caller's namespaces.",
        query=CacheQuery,
        answer=answers.NamedAnswer,
    ),
    Operation(
        method="get",
        path="/cache/tree",
        tag="cache",
        summary="Show the runs of the tree that rank highest.",
        query=TreeQuery,
        answer=answers.NamedAnswer,
    ),
    _post(
        "/cache/explain",
        "cache",
        "Tell what a prompt would find in the cache now, and what would keep it from running.",
        ExplainBody,
        answers.NamedAnswer,
    ),
    _post(
        "/cache/warm",
        "cache",
        "Compute a prefix and leave it in the cache. To pin it takes an admin.",
        WarmBody,
        answers.NamedAnswer,
    ),
    Operation(
        method="post",
        path="/cache/pin",
        tag="cache",
        summary="Hold what is cached of a prefix for a time.",
        body=PinBody,
        answer=answers.NamedAnswer,
        access=Access.ADMINS,
    ),
    Operation(
        method="post",
        path="/cache/unpin",
        tag="cache",
        summary="Give up the pin of a name, or all pins of a prefix.",
        body=UnpinBody,
        answer=answers.NamedAnswer,
        access=Access.ADMINS,
    ),
    Operation(
        method="post",
        path="/cache/flush",
        tag="cache",
        summary="Drop everything, or what some namespaces have, that no request is using now.",
        body=FlushBody,
        answer=answers.NamedAnswer,
        needs_body=False,
        access=Access.ADMINS,
    ),
    Operation(
        method="get",
        path="/requests",
        tag="server",
        summary="List the live requests, how far they have come, and what they wait for.",
        query=RequestsQuery,
        answer=answers.NamedAnswer,
        access=Access.ADMINS,
    ),
)
