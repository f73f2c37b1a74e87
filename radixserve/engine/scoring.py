"""How likely some texts are as continuations of one prompt.

    prompt  [ p p p p p ]
                        +-- New -- York          one request an option, in sorted order
                        |      `-- Jersey        starts to score where it leaves the one before
                        `-- Utah

The scheduler computes what the options have in common once: the first request leads, the others
wait for it and share its blocks. So each edge of the trie above costs about one pass over its
tokens, besides the one position before it, whose logits say how likely its first token is.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from radixserve.engine.request import GenerateRequest, Usage
from radixserve.errors import InvalidRequestError
from radixserve.types import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve.engine.async_engine import AsyncEngine
    from radixserve.engine.request import TextDelta
    from radixserve.types import TokenId, TokenLogprob


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreTerms:
    """What all requests of one scoring have in common; see `GenerateRequest`."""

    cache_salt: str = ""
    priority: int = 0
    tenant: str = ""
    timeout_s: float | None = None
    request_id: str = ""
    """What the requests' names begin with; made by the engine when empty."""


@dataclass(frozen=True, slots=True)
class OptionScore:
    """One option, token by token."""

    tokens: tuple[TokenLogprob, ...]
    usage: Usage
    """Of the request that scored it; all zero where others had scored all its tokens."""

    @property
    def logprob(self) -> float:
        """The natural logarithm of the option's probability."""
        return sum(token.logprob for token in self.tokens)

    @property
    def is_greedy(self) -> bool:
        """Whether each token is the likeliest one after those before it."""
        return all(token.rank == 1 for token in self.tokens)


@dataclass(slots=True)
class _Part:
    """What one option adds to the one before it in sorted order."""

    index: int
    """The option's place among the options as given."""
    known_len: int
    """Leading tokens in common with the option before."""
    tokens: list[TokenLogprob]
    usage: Usage


NO_TERMS = ScoreTerms()
_UNSCORED = Usage(0, 0, 0)


class Scoring:
    """The requests that score some options, and what comes of them.

    Log-probabilities are the model's own, whatever was cached.

    Args:
        prompt_ids: At least one token.
        options: At least one token each.
        terms: For all requests.
    Raises:
        InvalidRequestError: the prompt or an option is empty.
    """

    def __init__(
        self,
        prompt_ids: Sequence[TokenId],
        options: Sequence[Sequence[TokenId]],
        terms: ScoreTerms = NO_TERMS,
    ) -> None:
        _check(prompt_ids, options)
        self._parts = _parts(options)
        self._asking = [part for part in self._parts if part.known_len < len(options[part.index])]
        self.requests = tuple(
            _request(prompt_ids, options[part.index], part, terms) for part in self._asking
        )
        """In an order in which each shares the most with the one before."""

    def push(self, index: int, delta: TextDelta) -> None:
        """Take in what the request of that index produced. Mutates: this."""
        part = self._asking[index]
        part.tokens.extend(delta.prompt_logprobs)
        part.usage = delta.usage

    def scores(self) -> list[OptionScore]:
        """Return the options' scores in the order given, once all requests have ended."""
        found: dict[int, OptionScore] = {}
        tokens: tuple[TokenLogprob, ...] = ()
        for part in self._parts:
            tokens = (*tokens[: part.known_len], *part.tokens)
            found[part.index] = OptionScore(tokens, part.usage)
        return [found[index] for index in range(len(self._parts))]


async def score(
    engine: AsyncEngine,
    prompt_ids: Sequence[TokenId],
    options: Sequence[Sequence[TokenId]],
    terms: ScoreTerms = NO_TERMS,
) -> list[OptionScore]:
    """Return how likely each option is after the prompt, in the order given.

    Raises:
        InvalidRequestError: an option or the prompt is empty, or holds an unknown token.
        PromptTooLongError: the prompt and an option do not fit in the context.
        QueueFullError: too many requests are waiting; those submitted before are given up.
    Complexity: about one pass over the prompt and the options' trie.
    """
    scoring = Scoring(prompt_ids, options, terms)
    async with AsyncExitStack() as stack:
        streams = [
            await stack.enter_async_context(engine.submit(request)) for request in scoring.requests
        ]
        for index, stream in enumerate(streams):
            async for delta in stream:  # what others produce meanwhile is held for their turn
                scoring.push(index, delta)
    return scoring.scores()


def _check(prompt_ids: Sequence[TokenId], options: Sequence[Sequence[TokenId]]) -> None:
    if not prompt_ids:
        raise InvalidRequestError("the prompt is empty", param="prompt")
    if not all(options):
        raise InvalidRequestError("an option needs at least one token", param="options")


def _parts(options: Sequence[Sequence[TokenId]]) -> list[_Part]:
    """Return the options in sorted order: neighbours share the most."""
    order = sorted(range(len(options)), key=lambda index: tuple(options[index]))
    parts = []
    previous: Sequence[TokenId] = ()
    for index in order:
        parts.append(_Part(index, _common_len(previous, options[index]), [], _UNSCORED))
        previous = options[index]
    return parts


def _common_len(first: Sequence[TokenId], second: Sequence[TokenId]) -> int:
    shorter = min(len(first), len(second))
    return next((i for i in range(shorter) if first[i] != second[i]), shorter)


def _request(
    prompt_ids: Sequence[TokenId], option: Sequence[TokenId], part: _Part, terms: ScoreTerms
) -> GenerateRequest:
    return GenerateRequest(
        prompt_ids=[*prompt_ids, *option],
        params=SamplingParams(
            temperature=0.0,
            max_tokens=1,
            prompt_logprobs=0,
            prompt_logprobs_start=len(prompt_ids) + part.known_len,
        ),
        cache_salt=terms.cache_salt,
        priority=terms.priority,
        tenant=terms.tenant,
        timeout_s=terms.timeout_s,
        request_id=f"{terms.request_id}-{part.index}" if terms.request_id else "",
    )
