"""Beam search over an engine: each step is one request a beam, forked from the beam before it.

    step 0   prompt                    1 request, a fork point
    step 1   prompt + a                fork_of step 0: shares all its blocks, copies the last one,
             prompt + b                computes one token and tells the likeliest next ones
    step 2   prompt + a c  ...         the fork points of step 0 are forgotten

So a step computes one token a beam, and beams share in the tree whatever they have in common.
"""

from __future__ import annotations

import asyncio
import itertools
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from radixserve.engine.beams import BeamParams, Beams, Hypothesis
from radixserve.errors import InvalidRequestError
from radixserve.types import ReqId, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve.engine.async_engine import AsyncEngine
    from radixserve.engine.request import GenerateRequest, TextDelta, Usage
    from radixserve.types import TokenId

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class BeamSearchResult:
    """The best sequences, best first, and what they cost."""

    hypotheses: tuple[Hypothesis, ...]
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens that came from the cache."""
    steps: int
    computed_tokens: int
    """Over all steps, without the prompt's."""


async def beam_search(
    engine: AsyncEngine, request: GenerateRequest, params: BeamParams
) -> BeamSearchResult:
    """Return the likeliest continuations of a prompt.

    Args:
        request: The prompt and the fields about queue and cache. Its sampling parameters, stop
            strings and fork are not used; `timeout_s` holds for each step.
        params: With the ids that end a sequence, the model's own included.
    Raises:
        InvalidRequestError: a width below 1, or more than the vocabulary.
        RadixServeError: what the engine raises for a request.
    Mutates: nothing that outlives the call: leaving, for whatever cause, forgets all fork points.
    """
    if not 1 <= params.width <= engine.info.vocab_size:
        raise InvalidRequestError(
            f"beam_width must be from 1 to {engine.info.vocab_size}; got {params.width}",
            param="beam_width",
        )
    search = _Search(engine, request, params)
    try:
        while not search.beams.is_done:
            await search.step()
    finally:
        search.forget_all()
    return search.result()


class _Search:
    """One search under way."""

    def __init__(self, engine: AsyncEngine, request: GenerateRequest, params: BeamParams) -> None:
        self.beams = Beams(params)
        self._engine = engine
        self._request = request
        self._name = request.request_id or f"beams-{next(_numbers)}"
        num_top = min(params.num_candidates, engine.info.vocab_size)
        self._params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=num_top)
        self._fork_points: list[ReqId] = []
        self._older: list[ReqId] = []
        self._steps = 0
        self._computed = 0
        self._first: Usage | None = None

    async def step(self) -> None:
        """Run one request a beam, side by side, and decide."""
        requests = [
            self._request_of(beam.tokens, place, beam.parent)
            for place, beam in enumerate(self.beams.open)
        ]
        self._older, self._fork_points = (
            self._fork_points,
            [ReqId(request.request_id) for request in requests],
        )
        deltas = await self._run(requests)
        for name in self._older:
            self._engine.forget(name)
        self._count([delta.usage for delta in deltas])
        self.beams.advance([delta.logprobs[0].top for delta in deltas])

    def forget_all(self) -> None:
        """Give up every fork point."""
        for name in (*self._older, *self._fork_points):
            self._engine.forget(name)

    def result(self) -> BeamSearchResult:
        """Return what was found."""
        assert self._first is not None
        return BeamSearchResult(
            hypotheses=tuple(self.beams.finished),
            prompt_tokens=self._first.prompt_tokens,
            cached_tokens=self._first.cached_tokens,
            steps=self._steps,
            computed_tokens=self._computed,
        )

    def _request_of(self, tokens: Sequence[TokenId], place: int, parent: int) -> GenerateRequest:
        return replace(
            self._request,
            prompt_ids=[*self._request.prompt_ids, *tokens],
            params=self._params,
            stop=(),
            ignore_eos=True,
            request_id=f"{self._name}/{self._steps}/{place}",
            fork_of=self._fork_points[parent] if self._fork_points else "",
            is_fork_point=True,
            is_next_step=bool(self._fork_points),
        )

    async def _run(self, requests: Sequence[GenerateRequest]) -> list[TextDelta]:
        """Submit them all before any is waited for, so that they share their steps."""
        async with AsyncExitStack() as stack:
            streams = [
                await stack.enter_async_context(self._engine.submit(request))
                for request in requests
            ]
            return await asyncio.gather(*(anext(stream) for stream in streams))

    def _count(self, usages: Sequence[Usage]) -> None:
        if self._first is None:
            self._first = usages[0]
        else:
            self._computed += sum(u.prompt_tokens - u.cached_tokens for u in usages)
        self._steps += 1
