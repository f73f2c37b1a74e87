"""What a choice tells besides its text, on any route: token ids, and facts of the prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from radixserve.server.protocol.logprobs import prompt_logprobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve.engine.request import GenerateRequest, TextDelta
    from radixserve.server.protocol.answers import AnswerOptions
    from radixserve.server.protocol.choices import ChoiceWriter
    from radixserve.server.protocol.logprobs import TokenNames


class TokenFactsWriter:
    """Adds `token_ids`, `prompt_token_ids` and `prompt_logprobs` to what another writer writes.

    In a stream, ids go with the next chunk that has something to say, and what is known of the
    prompt with the first.

    Args:
        inner: Writes the choice itself.
        request: What the choice continues.
        options: What the caller wants.
        names: How tokens are written.
    """

    def __init__(
        self,
        inner: ChoiceWriter,
        request: GenerateRequest,
        options: AnswerOptions,
        names: TokenNames,
    ) -> None:
        self._inner = inner
        self._request = request
        self._options = options
        self._names = names
        self._facts: dict[str, Any] | None = None
        self._untold: dict[str, Any] = {}
        self._ids: list[int] = []
        self._num_told = 0

    def push(self, delta: TextDelta) -> list[dict[str, Any]]:
        """Return the chunks of a delta, with the ids and facts that are due."""
        if self._facts is None:
            self._facts = self._untold = self._facts_of_prompt(delta)
        self._ids.extend(delta.token_ids)
        chunks = self._inner.push(delta)
        if not chunks:
            return chunks
        if self._options.returns_token_ids:
            self._tell_ids(chunks)
        chunks[0].update(self._untold)
        self._untold = {}
        return chunks

    def whole(self) -> dict[str, Any]:
        """Return the complete choice."""
        ids = {"token_ids": self._ids} if self._options.returns_token_ids else {}
        return {**self._inner.whole(), **ids, **(self._facts or {})}

    def _tell_ids(self, chunks: Sequence[dict[str, Any]]) -> None:
        """They go with the last chunk before the finish reason, which stands alone."""
        has_end = chunks[-1].get("finish_reason") is not None
        place = len(chunks) - 1 - int(has_end and len(chunks) > 1)
        for at, chunk in enumerate(chunks):
            chunk["token_ids"] = self._ids[self._num_told :] if at == place else []
        self._num_told = len(self._ids)

    def _facts_of_prompt(self, delta: TextDelta) -> dict[str, Any]:
        facts: dict[str, Any] = {}
        if self._options.returns_token_ids:
            facts["prompt_token_ids"] = list(self._request.prompt_ids)
        if self._options.num_prompt_tops is not None:
            facts["prompt_logprobs"] = self._prompt_logprobs(delta, self._options.num_prompt_tops)
        return facts

    def _prompt_logprobs(self, delta: TextDelta, num_top: int) -> list[dict[str, Any] | None]:
        """The prompt's log-probabilities come whole, with the first delta.

        The engine's may begin before the position that is told of: the echo wants them all.
        """
        known_from = max(1, self._request.params.prompt_logprobs_start)
        told_from = self._options.first_prompt_logprob
        scores = delta.prompt_logprobs[max(1, told_from) - known_from :]
        return prompt_logprobs([None, *scores] if told_from == 0 else scores, num_top, self._names)
