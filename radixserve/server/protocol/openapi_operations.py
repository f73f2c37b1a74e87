"""The routes of the server, as ``/openapi.json`` tells of them."""

from __future__ import annotations

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
from radixserve.server.protocol.openapi_batches import BATCH_OPERATIONS
from radixserve.server.protocol.openapi_operation import Access, Operation, post_operation
from radixserve.server.protocol.responses import ResponsesRequest
from radixserve.server.protocol.score import ScoreRequest
from radixserve.server.protocol.tokenize import DetokenizeRequest, TokenizeRequest

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
        post_operation(
            f"{root}/tokenize",
            "tokens",
            "Say which tokens a text or a conversation has.",
            TokenizeRequest,
            answers.TokensAnswer,
        ),
        post_operation(
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
    post_operation(
        "/generate/forget",
        "generation",
        "Let go of calls that were kept to go on from.",
        ForgetBody,
        answers.ForgetAnswer,
    ),
    post_operation(
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
    post_operation(
        "/cache/explain",
        "cache",
        "Tell what a prompt would find in the cache now, and what would keep it from running.",
        ExplainBody,
        answers.NamedAnswer,
    ),
    post_operation(
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
    *BATCH_OPERATIONS,
)
