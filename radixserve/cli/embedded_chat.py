"""`EmbeddedChat`: answers from an engine in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve.cli.conversation import AnswerPart, TokenCounts

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from radixserve.cli.conversation import ChatSampling, Message
    from radixserve.engine.async_engine import AsyncEngine


class EmbeddedChat:
    """Streams answers from an engine. Implements `conversation.ChatBackend`.

    Args:
        engine: Loaded and not yet started; this object starts and stops it.
    """

    def __init__(self, engine: AsyncEngine, sampling: ChatSampling) -> None:
        self._engine = engine
        self._sampling = sampling

    async def open(self) -> str:
        """Start the engine and return the model's name."""
        await self._engine.start()
        return self._engine.info.name

    async def answer(self, messages: Sequence[Message]) -> AsyncGenerator[AnswerPart, None]:
        """Yield the answer as it is generated; closing early aborts the request.

        Raises:
            RequestError: the engine refuses the conversation, for one because it is too long.
        """
        from radixserve.engine.request import GenerateRequest
        from radixserve.types import SamplingParams

        request = GenerateRequest(
            prompt_ids=self._engine.chat_template.encode(messages),
            params=SamplingParams(
                temperature=self._sampling.temperature,
                max_tokens=self._sampling.max_tokens,
                seed=self._sampling.seed,
            ),
        )
        async with self._engine.submit(request) as stream:
            async for delta in stream:
                usage = delta.usage
                yield AnswerPart(
                    delta.text,
                    TokenCounts(usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens),
                )

    async def close(self) -> None:
        """Stop the engine."""
        await self._engine.stop()
