"""Runs calls on a radixserve, token by token the same as in this process.

    start       GET /tokenizer            once: the server's tokenizer and chat template
    generate    POST /generate            ids in and out, as a stream
    score       POST /v1/score            ids in, log-probabilities out
    forget      POST /generate/forget     once, when a run ends

Transcripts are encoded here, by the same class and the same tables as on the server: the ids are
equal because nothing else makes them, and a sample is checked at the start. So a call sends ids,
and of these only those that the call it goes on from does not have: its `parent` is kept by the
server for a while. Scores send the whole prompt.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
import uuid
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from radixserve.errors import (
    BackendUnavailableError,
    ForkNotFoundError,
    ModelLoadError,
    RadixServeError,
)
from radixserve.frontend.backends.encoding import TranscriptEncoder
from radixserve.frontend.backends.http_client import HttpClient
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
from radixserve.frontend.backends.wire import constraint_fields, hint_fields, sampling_fields
from radixserve.types import ID_BYTES, pack_ids

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Sequence

    from radixserve.frontend.backends.protocol import CallHints, GenCall, ScoreCall
    from radixserve.frontend.pieces import Transcript
    from radixserve.types import PackedIds, TokenId

KEPT_S = 300.0
"""For so long the server keeps a call that nobody has gone on from."""
OPTIONS_PER_CALL = 256
"""As many as the server scores at once."""


class RemoteBackend:
    """A running radixserve.

    Args:
        url: Its address, with or without a closing ``/v1``.
        token: An API key, where it asks for one.
        sends_hints: Whether it is told what the program knows of the future.
    """

    def __init__(self, url: str, token: str | None = None, *, sends_hints: bool = True) -> None:
        self._http = HttpClient(url.rstrip("/").removesuffix("/v1"), token)
        self._sends_hints = sends_hints
        self._prefix = uuid.uuid4().hex
        self._numbers = itertools.count(1)
        self._model = ""
        self._encoder: TranscriptEncoder | None = None
        self._starting = StartOnce(self._start)
        self._kept: dict[str, PackedIds] = {}
        """The ids of calls that may be gone on from."""
        self._errands: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<RemoteBackend {self.name} at {self._http.url}>"

    @property
    def name(self) -> str:
        """The model's name, once it is known."""
        return self._model or self._http.url

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Everything."""
        return frozenset(Capability)

    @property
    def encoder(self) -> TranscriptEncoder:
        """Makes token ids of transcripts.

        Raises:
            BackendUnavailableError: it is not known yet: `await start()` first.
        """
        if self._encoder is None:
            raise BackendUnavailableError("the server is not known yet: await start() first")
        return self._encoder

    async def start(self) -> None:
        """Connect and fetch the tokenizer, once, however many programs ask at the same time.

        Raises:
            BackendUnavailableError: it cannot be reached, is used in another event loop, or
                encodes text otherwise than this process would.
        """
        self._http.open()
        await self._starting()

    async def close(self) -> None:
        """Hang up, after what is under way has been said."""
        await asyncio.gather(*self._errands)
        await self._http.close()
        self._starting.forget()
        self._encoder = None
        self._kept.clear()

    async def generate(self, call: GenCall) -> AsyncIterator[str | GenDone]:
        """See `Backend`."""
        prompt = self.encoder.encode(call.transcript)
        body = {
            "sampling_params": sampling_fields(call) | constraint_fields(call.constraint),
            "stream": True,
            "return_logprob": call.logprobs is not None,
            "top_logprobs_num": call.logprobs or 0,
            **_given(timeout_s=call.timeout_s),
        }
        async with aclosing(self._run(body, prompt, call.parent, call.hints)) as pieces:
            async for piece in pieces:
                yield piece

    async def score(self, call: ScoreCall) -> ScoreDone:
        """See `Backend`."""
        started = time.perf_counter()
        prompt = self.encoder.encode(call.transcript)
        options = self.encoder.options(call.transcript, call.options, closes_turn=call.closes_turn)
        scored: list[dict[str, Any]] = []
        for begin in range(0, len(options), OPTIONS_PER_CALL):
            body = {
                "prompt": prompt,
                "options": options[begin : begin + OPTIONS_PER_CALL],
                **_given(timeout_s=call.timeout_s),
            }
            scored += (await self._http.post("/v1/score", body))["options"]
        asked = ((one["prompt_tokens"], one["cached_tokens"]) for one in scored)
        usage = scoring_usage(asked, time.perf_counter() - started)
        told = (
            OptionTokens(ids, tuple(_number(value) for value in one["token_logprobs"]))
            for ids, one in zip(options, scored, strict=True)
        )
        return ScoreDone(tuple(told), usage)

    async def warm(self, transcript: Transcript, parent: str, hints: CallHints) -> WarmDone:
        """See `Backend`."""
        prompt = self.encoder.encode(transcript)
        body = {"sampling_params": {"temperature": 0.0, "max_new_tokens": 1}, "stream": True}
        async with aclosing(self._run(body, prompt, parent, hints)) as pieces:
            async for piece in pieces:
                if isinstance(piece, GenDone):
                    done = piece
        usage = replace(done.usage, output_tokens=0, forced_tokens=0, ttft_s=done.usage.total_s)
        return WarmDone(done.call_id, usage)

    def forget(self, call_ids: Sequence[str]) -> None:
        """See `Backend`. Said to the server aside; it forgets by itself if that gets lost."""
        for call_id in call_ids:
            self._kept.pop(call_id, None)
        if call_ids and self._encoder is not None:
            errand = asyncio.get_running_loop().create_task(self._forget(list(call_ids)))
            self._errands.add(errand)
            errand.add_done_callback(self._errands.discard)

    async def _forget(self, call_ids: list[str]) -> None:
        try:
            body = {"ids": call_ids, "is_end": self._sends_hints}
            await self._http.post("/generate/forget", body)
        except RadixServeError:
            return

    async def _start(self) -> None:
        sheet = await self._http.get("/tokenizer")
        try:
            # Imported here: the compiler of templates and the tokenizer take a moment to load.
            from radixserve.text.portable import read_sheet

            tokenizer, template = await asyncio.to_thread(read_sheet, sheet)
        except ModelLoadError as failed:
            raise BackendUnavailableError(f"{self._http.url}: {failed}") from failed
        self._model = sheet["model"]
        self._encoder = TranscriptEncoder(tokenizer, template)

    async def _run(
        self, body: dict[str, Any], prompt: Sequence[TokenId], parent: str, hints: CallHints
    ) -> AsyncGenerator[str | GenDone, None]:
        """Yield pieces of text, and at the end how the generation ended."""
        call_id = self._new_name()
        told = _Told(prompt)
        done: GenDone | None = None
        is_over = False
        try:
            async with aclosing(self._events(body, prompt, parent, call_id, hints)) as events:
                async for event in events:
                    told.push(event)
                    if event["text"]:
                        yield event["text"]
                    if event["meta_info"]["finish_reason"] is not None:
                        done = told.done(event["meta_info"], self.encoder, call_id)
            is_over = True
        finally:
            if not is_over:  # it may have ended all the same, just now
                self.forget([call_id])
        assert done is not None
        self._kept[call_id] = pack_ids(told.all_ids)
        yield done

    async def _events(
        self,
        body: dict[str, Any],
        prompt: Sequence[TokenId],
        parent: str,
        call_id: str,
        hints: CallHints,
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Yield what answers a prompt. What its parent has of it is not sent, if that is kept."""
        fields = hint_fields(hints, sends_hints=self._sends_hints)
        fork = {"id": call_id, "ttl_s": KEPT_S}
        shared = self._shared_len(prompt, parent)
        if shared:
            going_on = fork | {"parent": parent, "parent_len": shared}
            fields["radix"]["fork"] = going_on
            try:
                rest = {**body, **fields, "input_ids": prompt[shared:]}
                async with aclosing(self._http.events("/generate", rest)) as events:
                    async for event in events:
                        yield event
                return
            except ForkNotFoundError:
                self._kept.pop(parent, None)
        fields["radix"]["fork"] = fork
        whole = {**body, **fields, "input_ids": prompt}
        async with aclosing(self._http.events("/generate", whole)) as events:
            async for event in events:
                yield event

    def _shared_len(self, prompt: Sequence[TokenId], parent: str) -> int:
        """Return how many leading tokens a prompt has in common with a kept call; not all of them:
        at least one is sent."""
        known = self._kept.get(parent)
        if known is None:
            return 0
        mine = pack_ids(prompt[:-1])
        if known.startswith(mine):
            return len(mine) // ID_BYTES
        if mine.startswith(known):
            return len(known) // ID_BYTES
        pairs = enumerate(
            zip(memoryview(mine).cast("I"), memoryview(known).cast("I"), strict=False)
        )
        return next((place for place, (ours, theirs) in pairs if ours != theirs), 0)

    def _new_name(self) -> str:
        return f"{self._prefix}-{next(self._numbers)}"


class _Told:
    """What a generation has told so far.

    Args:
        prompt: Its prompt.
    """

    def __init__(self, prompt: Sequence[TokenId]) -> None:
        self.all_ids = list(prompt)
        """The prompt's, and then the output's."""
        self._started = time.perf_counter()
        self._first_s = 0.0
        self._text = ""
        self._prompt_len = len(prompt)
        self._logprobs: list[float] = []

    def push(self, event: dict[str, Any]) -> None:
        """Take in what is new. Mutates: this."""
        if event["output_ids"] and not self._first_s:
            self._first_s = time.perf_counter() - self._started
        self._text += event["text"]
        self.all_ids += event["output_ids"]
        triples = event["meta_info"].get("output_token_logprobs", ())
        self._logprobs += [value for value, _, _ in triples]

    def done(self, facts: dict[str, Any], encoder: TranscriptEncoder, call_id: str) -> GenDone:
        """Return the end of the generation.

        Args:
            facts: The last event's.
        """
        reason = facts["finish_reason"]
        shown = self.all_ids[self._prompt_len :]
        if reason["type"] == "stop" and not isinstance(reason["matched"], str):
            shown = shown[:-1]  # the token that ended it
        return GenDone(
            text=self._text,
            parts=tuple(encoder.output(self._text, shown)),
            finish_reason=reason["type"],
            call_id=call_id,
            usage=CallUsage(
                input_tokens=facts["prompt_tokens"],
                cached_tokens=facts["cached_tokens"],
                output_tokens=facts["completion_tokens"],
                forced_tokens=facts["forced_tokens"],
                ttft_s=self._first_s,
                total_s=time.perf_counter() - self._started,
            ),
            logprobs=tuple(self._logprobs),
        )


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _number(value: float | None) -> float:
    """Return a log-probability; JSON has no minus infinity."""
    return -math.inf if value is None else value
