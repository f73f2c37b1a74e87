"""The choices of a call that searches: each prompt's best sequences, when they are known."""

from __future__ import annotations

from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING

from radixserve.engine.beam_search import beam_search
from radixserve.engine.beams import BeamParams
from radixserve.engine.request import TextDelta, Usage
from radixserve.server.exchange import owned
from radixserve.server.merge import merge
from radixserve.types import FinishReason

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Sequence

    from radixserve.engine.async_engine import AsyncEngine
    from radixserve.engine.beam_search import BeamSearchResult
    from radixserve.engine.beams import Hypothesis
    from radixserve.engine.request import GenerateRequest
    from radixserve.server.choice_deltas import ChoiceDeltas, Indexed
    from radixserve.server.protocol.answers import AnswerOptions
    from radixserve.server.protocol.beam import BeamOptions
    from radixserve.server.protocol.usage import UsageTally
    from radixserve.text.tokenizer import Tokenizer


@asynccontextmanager
async def open_beams(
    engine: AsyncEngine,
    requests: Sequence[GenerateRequest],
    options: AnswerOptions,
    tally: UsageTally,
) -> AsyncIterator[ChoiceDeltas]:
    """Search for each prompt, all at once, and read the choices, one delta each.

    Leaving, for whatever reason, ends the searches.

    Args:
        requests: One a prompt.
        tally: Is told the tokens of each choice.
    Raises:
        RequestError: a request was refused.
    """
    assert options.beam is not None
    searches = [_search(engine, request, options.beam) for request in requests]
    async with aclosing(_choices(searches, options.kept, tally)) as choices:
        yield choices


async def _choices(
    searches: Sequence[AsyncGenerator[TextDelta, None]], kept: int, tally: UsageTally
) -> AsyncGenerator[Indexed, None]:
    """Number the best sequences of each search; the others are dropped."""
    told = [0] * len(searches)
    async with aclosing(merge(searches)) as deltas:
        async for prompt, delta in deltas:
            index = prompt * kept + told[prompt]
            told[prompt] += 1
            if told[prompt] <= kept:
                tally.see(index, delta.usage)
                yield index, delta


async def _search(
    engine: AsyncEngine, request: GenerateRequest, beam: BeamOptions
) -> AsyncGenerator[TextDelta, None]:
    params = request.params
    eos = frozenset() if request.ignore_eos else engine.eos_token_ids
    found = await beam_search(
        engine,
        owned(request),
        BeamParams(
            width=beam.width,
            max_tokens=params.max_tokens,
            stop_token_ids=params.stop_token_ids | eos,
            min_tokens=params.min_tokens,
            length_penalty=beam.length_penalty,
            early_stopping=beam.early_stopping,
        ),
    )
    for hypothesis in found.hypotheses:
        yield _delta_of(hypothesis, found, request, engine.tokenizer)


def _delta_of(
    hypothesis: Hypothesis, found: BeamSearchResult, request: GenerateRequest, tokenizer: Tokenizer
) -> TextDelta:
    """Return a sequence as one that was sampled would come."""
    tokens = hypothesis.tokens
    has_stop = hypothesis.finish_reason is FinishReason.STOP
    shown = tokens[:-1] if has_stop and not request.include_stop_str_in_output else tokens
    return TextDelta(
        tokenizer.decode(shown, skip_special_tokens=request.skip_special_tokens),
        tokens,
        hypothesis.finish_reason,
        tokens[-1] if tokens[-1] in request.params.stop_token_ids else None,
        Usage(found.prompt_tokens, found.cached_tokens, len(tokens)),
    )
