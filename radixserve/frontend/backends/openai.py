"""Runs calls on any server with an OpenAI-compatible API, as far as that goes.

    chats          POST /v1/chat/completions
    plain prompts  POST /v1/completions          where there is one
    scores         the same with `echo`          where that tells log-probabilities of the prompt

The API takes and gives text, so its tokens are not known here, and an output's text is tokenized
anew by the next call. What a server cannot do is refused before anything is sent.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from radixserve.errors import (
    BackendUnavailableError,
    QueueFullError,
    RadixServeError,
    RequestTimeoutError,
    UnsupportedByBackendError,
)
from radixserve.frontend.backends.http_client import HttpClient
from radixserve.frontend.backends.openai_answer import Answer, whole_usage
from radixserve.frontend.backends.openai_body import generation_body, score_body, wraps_value
from radixserve.frontend.backends.openai_scores import scores_of
from radixserve.frontend.backends.patience import patiently
from radixserve.frontend.backends.protocol import (
    CallHints,
    CallUsage,
    Capability,
    GenCall,
    GenDone,
    ScoreDone,
    WarmDone,
)
from radixserve.frontend.backends.start_once import StartOnce

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from radixserve.frontend.backends.protocol import ScoreCall
    from radixserve.frontend.pieces import Transcript

DECLARED = frozenset({Capability.CHAT, Capability.JSON})
"""What every such server is taken to be able to do."""


class OpenAIBackend:
    """A server with an OpenAI-compatible API.

    Args:
        url: Its address, with or without a closing ``/v1``.
        model: The model to ask; the first that the server lists when None.
        api_key: Sent as a bearer token when given.
        capabilities: What the server can do; when None, two tiny requests find out whether it has
            completions and scores.
        continues_turns: Whether the server goes on with an assistant's turn that has begun
            (`continue_final_message`); radixserve and vLLM do, OpenAI does not.
    """

    def __init__(
        self,
        url: str,
        model: str | None = None,
        api_key: str | None = None,
        *,
        capabilities: Iterable[Capability] | None = None,
        continues_turns: bool = False,
    ) -> None:
        self._http = HttpClient(url.rstrip("/").removesuffix("/v1") + "/v1", api_key)
        self._model = model or ""
        self._continues_turns = continues_turns
        self._capabilities = DECLARED if capabilities is None else frozenset(capabilities)
        self._is_probed = capabilities is not None
        self._starting = StartOnce(self._start)

    def __repr__(self) -> str:
        return f"<OpenAIBackend {self.name}>"

    @property
    def name(self) -> str:
        """The model and the server."""
        return f"{self._model or 'a model'} at {self._http.url}"

    @property
    def capabilities(self) -> frozenset[Capability]:
        """As far as is known: complete once the backend has been started."""
        return self._capabilities

    async def start(self) -> None:
        """Connect, choose the model and find out what it can do; once.

        Raises:
            BackendUnavailableError: the server cannot be reached, lists no model, or is used in
                another event loop.
        """
        self._http.open()
        await self._starting()

    async def close(self) -> None:
        """Hang up."""
        await self._http.close()
        self._starting.forget()

    async def generate(self, call: GenCall) -> AsyncIterator[str | GenDone]:
        """See `Backend`.

        Raises:
            UnsupportedByBackendError: the assistant's turn has begun, and the server cannot go on
                with it.
        """
        self._check_turn(call.transcript)
        answer = Answer(time.perf_counter(), is_wrapped=wraps_value(call.constraint))
        path, body = generation_body(call, self._model)
        try:
            async with (
                asyncio.timeout(call.timeout_s),
                aclosing(self._http.events(path, body)) as events,
            ):
                async for event in events:
                    if text := answer.push(event):
                        yield text
        except TimeoutError:
            if not answer.text:
                raise RequestTimeoutError(
                    f"{call.timeout_s:g} s were up before the first token"
                ) from None
            answer.cut()
        if rest := answer.rest():
            yield rest
        yield answer.done()

    async def score(self, call: ScoreCall) -> ScoreDone:
        """See `Backend`. Token ids are made up: negative numbers that are equal where texts are.

        Raises:
            UnsupportedByBackendError: the prompt is a chat: only the server knows its text.
        """
        if call.transcript.is_chat:
            raise UnsupportedByBackendError(
                f"{self.name} scores plain prompts only: use gen(type=Literal[...]) in a chat, or "
                "another backend"
            )
        started = time.perf_counter()
        prompt = str(call.transcript)
        async with asyncio.timeout(call.timeout_s):
            found = await self._http.post(
                "/completions", score_body(prompt, call.options, self._model)
            )
        choices = sorted(found["choices"], key=lambda choice: int(choice["index"]))
        usage = whole_usage(found.get("usage"), time.perf_counter() - started)
        return ScoreDone(tuple(scores_of(prompt, call.options, choices)), usage)

    async def warm(self, transcript: Transcript, parent: str, hints: CallHints) -> WarmDone:
        """Have the prompt read and one token written: there is no other way to ask for it."""
        call = GenCall(path="", transcript=transcript, max_tokens=1, temperature=0.0, seed=0)
        path, body = generation_body(call, self._model)
        answer = Answer(time.perf_counter(), is_wrapped=False)
        async for event in self._http.events(path, body):
            answer.push(event)
        usage = answer.done().usage
        read = CallUsage(
            input_tokens=usage.input_tokens,
            cached_tokens=usage.cached_tokens,
            ttft_s=usage.total_s,
            total_s=usage.total_s,
        )
        return WarmDone("", read)

    def forget(self, call_ids: Sequence[str]) -> None:
        """Nothing is kept."""

    def _check_turn(self, transcript: Transcript) -> None:
        turn = transcript.open_turn
        if turn is not None and turn.parts and not self._continues_turns:
            raise UnsupportedByBackendError(
                f"{self.name} cannot go on with a turn of the assistant that has begun: ask for "
                "the beginning in p.user(text), or say continues_turns=True if the server can"
            )

    async def _start(self) -> None:
        if not self._model:
            listed = await self._http.get("/models")
            try:
                self._model = listed["data"][0]["id"]
            except (KeyError, IndexError, TypeError):
                raise BackendUnavailableError(f"{self._http.url} lists no model") from None
        if not self._is_probed:
            self._capabilities = DECLARED | await self._probe()
            self._is_probed = True

    async def _probe(self) -> frozenset[Capability]:
        """Find out whether plain prompts can be continued and scored.

        Raises:
            BackendUnavailableError: the server cannot be reached.
            QueueFullError: it has no room, however long one waits.
        """
        scored = await self._try(score_body("a", [" b"], self._model))
        if scored is not None:
            try:
                scores_of("a", [" b"], scored["choices"])
            except (RadixServeError, KeyError, IndexError, TypeError):
                return frozenset({Capability.PLAIN})
            return frozenset({Capability.PLAIN, Capability.SCORE})
        plain = await self._try({"model": self._model, "prompt": "a", "max_tokens": 1})
        return frozenset({Capability.PLAIN} if plain is not None else ())

    async def _try(self, body: dict[str, Any]) -> Any:
        try:
            found, _ = await patiently(lambda _: self._http.post("/completions", body), None)
            return found
        except (BackendUnavailableError, QueueFullError):
            raise
        except RadixServeError:
            return None
