"""An engine in this process, as a target: no HTTP, no JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve.bench.target import Failure, Stopwatch, TokenCounts
from radixserve.engine.request import GenerateRequest
from radixserve.errors import RadixServeError
from radixserve.types import SamplingParams

if TYPE_CHECKING:
    from radixserve.bench.dialogue import Prompt
    from radixserve.bench.target import Outcome
    from radixserve.engine.async_engine import AsyncEngine


class EngineTarget:
    """Submits requests to an engine. Implements `Target`.

    Args:
        engine: Has been started.
        temperature: 0 is greedy.
        ignores_eos: Whether outputs go on to their full length.
    """

    def __init__(
        self, engine: AsyncEngine, *, temperature: float = 0.0, ignores_eos: bool = True
    ) -> None:
        self._engine = engine
        self._temperature = temperature
        self._ignores_eos = ignores_eos

    async def send(self, name: str, prompt: Prompt, output_len: int) -> Outcome:
        """Return what the request gave; failures are outcomes, not exceptions."""
        watch = Stopwatch(name)
        counts = TokenCounts()
        try:
            async with self._engine.submit(self._request(prompt, output_len)) as stream:
                async for delta in stream:
                    watch.chunk(delta.text, delta.token_ids)
                    usage = delta.usage
                    counts = TokenCounts(
                        usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens
                    )
        except RadixServeError as error:
            return watch.stop(counts, Failure(type(error).__name__, str(error)))
        return watch.stop(counts)

    def _request(self, prompt: Prompt, output_len: int) -> GenerateRequest:
        if isinstance(prompt, str):
            ids = self._engine.tokenizer.encode(prompt)
        else:
            ids = [token for token in prompt if isinstance(token, int)]
        params = SamplingParams(temperature=self._temperature, max_tokens=output_len)
        return GenerateRequest(prompt_ids=ids, params=params, ignore_eos=self._ignores_eos)
