"""Runs calls on an engine in this process."""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from radixserve.engine.request import Ending, GenerateRequest, ReleaseHint
from radixserve.engine.scoring import ScoreTerms, score
from radixserve.errors import BackendUnavailableError
from radixserve.frontend.backends.encoding import TranscriptEncoder
from radixserve.frontend.backends.protocol import (
    CallUsage,
    Capability,
    GenDone,
    OptionTokens,
    ScoreDone,
    WarmDone,
    scoring_usage,
)
from radixserve.frontend.backends.start_once import StartOnce
from radixserve.types import FinishReason, ReqId, SamplingParams

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from radixserve.config import EngineConfig
    from radixserve.engine.async_engine import AsyncEngine
    from radixserve.engine.request import TextDelta, Usage
    from radixserve.frontend.backends.protocol import CallHints, GenCall, ScoreCall
    from radixserve.frontend.pieces import Transcript
    from radixserve.types import Grammar, TokenId

FINISHES = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.TIMEOUT: "timeout",
}


_numbers = itertools.count(1)


class EmbeddedBackend:
    """An engine in this process: loaded at first use, in the loop of that use.

    Args:
        engine: Already loaded, and started or not; whoever made it stops it. When None, one is
            made from `config` and belongs to this backend.
        config: Settings; the default model when None.
        sends_hints: Whether the engine is told what the program knows of the future.
    """

    def __init__(
        self,
        engine: AsyncEngine | None = None,
        *,
        config: EngineConfig | None = None,
        sends_hints: bool = True,
    ) -> None:
        self._engine = engine
        self._config = config
        self._owns_engine = engine is None
        self._sends_hints = sends_hints
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting = StartOnce(self._start)
        self._encoder: TranscriptEncoder | None = None

    def __repr__(self) -> str:
        return f"<EmbeddedBackend {self.name}>"

    @property
    def name(self) -> str:
        """The model's name, once it is loaded."""
        return self._engine.info.name if self._engine is not None else "not loaded"

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Everything."""
        return frozenset(Capability)

    @property
    def engine(self) -> AsyncEngine:
        """The engine.

        Raises:
            BackendUnavailableError: it is not loaded yet: `await start()` first.
        """
        if self._engine is None:
            raise BackendUnavailableError("the engine is not loaded yet: await start() first")
        return self._engine

    @property
    def encoder(self) -> TranscriptEncoder:
        """Makes token ids of transcripts."""
        if self._encoder is None:
            self._encoder = TranscriptEncoder(self.engine.tokenizer, self.engine.chat_template)
        return self._encoder

    async def start(self) -> None:
        """Load the model and start the engine, once, however many programs ask at the same time.

        Raises:
            BackendUnavailableError: it runs in another event loop.
        """
        loop = asyncio.get_running_loop()
        if self._loop is not None and self._loop is not loop:
            raise BackendUnavailableError(
                "this engine runs in another event loop; a program's .run() and .map() outside of "
                "a loop use one of their own: give them an engine of their own, or stay inside"
            )
        self._loop = loop
        await self._starting()

    async def close(self) -> None:
        """Stop the engine, if it is this backend's own."""
        if self._owns_engine and self._engine is not None:
            await self._engine.stop()
            self._engine = self._encoder = None
        self._starting.forget()
        self._loop = None

    async def generate(self, call: GenCall) -> AsyncIterator[str | GenDone]:
        """See `Backend`."""
        started = time.perf_counter()
        grammar = await self._grammar(call)
        request = self._request(call, grammar, new_call_id())
        told = _Told(started)
        done: GenDone | None = None
        try:
            async with self.engine.submit(request) as stream:
                async for delta in stream:
                    told.push(delta)
                    if delta.text:
                        yield delta.text
                    if delta.finish_reason is not None:
                        done = told.done(delta, self.encoder, request.request_id)
        finally:
            if done is None:  # it may have ended all the same, just now
                self.engine.forget(ReqId(request.request_id))
        assert done is not None
        yield done

    async def score(self, call: ScoreCall) -> ScoreDone:
        """See `Backend`."""
        started = time.perf_counter()
        prompt = self.encoder.encode(call.transcript)
        options = self.encoder.options(call.transcript, call.options, closes_turn=call.closes_turn)
        scores = await score(self.engine, prompt, options, ScoreTerms(timeout_s=call.timeout_s))
        took = time.perf_counter() - started
        asked = ((one.usage.prompt_tokens, one.usage.cached_tokens) for one in scores)
        usage = scoring_usage(asked, took)
        told = (
            OptionTokens(ids, tuple(token.logprob for token in one.tokens))
            for ids, one in zip(options, scores, strict=True)
        )
        return ScoreDone(tuple(told), usage)

    async def warm(self, transcript: Transcript, parent: str, hints: CallHints) -> WarmDone:
        """See `Backend`."""
        started = time.perf_counter()
        request = GenerateRequest(
            prompt_ids=self.encoder.encode(transcript),
            params=SamplingParams(temperature=0.0, max_tokens=1),
            hint=self._hint(hints),
            priority=hints.priority,
            tenant=hints.program,
            request_id=new_call_id(),
            fork_of=parent,
            is_fork_point=True,
        )
        async with self.engine.submit(request) as stream:
            async for delta in stream:
                usage = delta.usage
        took = time.perf_counter() - started
        return WarmDone(request.request_id, replace(_usage(usage, took, took), output_tokens=0))

    def forget(self, call_ids: Sequence[str]) -> None:
        """See `Backend`."""
        if self._engine is not None:
            for call_id in call_ids:
                self._engine.forget(ReqId(call_id), is_end=self._sends_hints)

    async def _start(self) -> None:
        if self._engine is None:
            from radixserve.config import EngineConfig
            from radixserve.engine.async_engine import AsyncEngine

            config = self._config or EngineConfig()
            self._engine = await asyncio.to_thread(AsyncEngine.from_config, config)
        if not self._engine.is_ready:
            await self._engine.start()

    async def _grammar(self, call: GenCall) -> Grammar | None:
        if call.constraint is None:
            return None
        return await self.engine.compile_grammar(call.constraint.spec)

    def _request(self, call: GenCall, grammar: Grammar | None, call_id: str) -> GenerateRequest:
        return GenerateRequest(
            prompt_ids=self.encoder.encode(call.transcript),
            params=SamplingParams(
                temperature=call.temperature,
                top_p=call.top_p,
                top_k=call.top_k,
                seed=call.seed,
                max_tokens=call.max_tokens,
                grammar=grammar,
                logprobs=call.logprobs,
            ),
            stop=call.stop,
            timeout_s=call.timeout_s,
            hint=self._hint(call.hints),
            priority=call.hints.priority,
            tenant=call.hints.program,
            request_id=call_id,
            fork_of=call.parent,
            is_fork_point=True,
        )

    def _hint(self, hints: CallHints) -> ReleaseHint:
        if not self._sends_hints:
            return ReleaseHint()
        return ReleaseHint(
            ending=Ending.TOOL if hints.pause_s is not None else Ending.UNKNOWN,
            hold_s=max(hints.ttl_s, hints.pause_s or 0.0),
            is_session_end=hints.is_end,
            prefix_len=hints.prefix_len,
            priority=hints.priority,
        )


def new_call_id() -> str:
    """Return a name that no call has had in this process."""
    return f"call-{next(_numbers)}"


class _Told:
    """What a generation has told so far.

    Args:
        started: When the call began, by the performance counter.
    """

    def __init__(self, started: float) -> None:
        self._started = started
        self._first_s = 0.0
        self._text = ""
        self._ids: list[TokenId] = []
        self._logprobs: list[float] = []

    def push(self, delta: TextDelta) -> None:
        """Take in what is new. Mutates: this."""
        if delta.token_ids and not self._first_s:
            self._first_s = time.perf_counter() - self._started
        self._text += delta.text
        self._ids += _shown_ids(delta)
        self._logprobs += [one.logprob for one in delta.logprobs]

    def done(self, last: TextDelta, encoder: TranscriptEncoder, call_id: str) -> GenDone:
        """Return the end of the generation."""
        assert last.finish_reason is not None
        return GenDone(
            text=self._text,
            parts=tuple(encoder.output(self._text, self._ids)),
            finish_reason=FINISHES.get(last.finish_reason, "stop"),
            call_id=call_id,
            usage=_usage(last.usage, self._first_s, time.perf_counter() - self._started),
            logprobs=tuple(self._logprobs),
        )


def _shown_ids(delta: TextDelta) -> Sequence[TokenId]:
    """Return a delta's ids without the token that ended the output."""
    ends_by_token = delta.finish_reason is FinishReason.STOP and not isinstance(
        delta.stop_reason, str
    )
    return delta.token_ids[:-1] if ends_by_token else delta.token_ids


def _usage(usage: Usage, first_s: float, total_s: float) -> CallUsage:
    return CallUsage(
        input_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        output_tokens=usage.completion_tokens,
        forced_tokens=usage.forced_tokens,
        ttft_s=first_s,
        total_s=total_s,
    )
