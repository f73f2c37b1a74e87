"""`select`: exact probabilities, whatever the order of the options and however they overlap."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixserve.frontend import Prompt, program, session
from radixserve.frontend.backends.protocol import OptionTokens
from radixserve.frontend.choice import choose
from radixserve.types import SamplingParams
from tests.kit.engines import ask

if TYPE_CHECKING:
    from radixserve.frontend import Choice, EmbeddedBackend

OPTIONS = [" no", " not sure", " not", " yes"]


async def select(backend: EmbeddedBackend, options: list[str], **fields: str) -> Choice:
    async with session(backend=backend) as p:
        p += "Is the sky green? Answer:"
        return await p.select("answer", options, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["joint", "mean", "tokenwise", "unconditional"])
async def test_permuting_the_options_permutes_the_probabilities(
    backend: EmbeddedBackend, method: str
) -> None:
    first = await select(backend, OPTIONS, method=method)
    for options in list(itertools.permutations(OPTIONS))[1::7]:
        choice = await select(backend, list(options), method=method)
        assert choice == first
        assert choice.probs == pytest.approx(first.probs)


async def test_probabilities_are_those_of_drawing_until_an_option_comes(
    backend: EmbeddedBackend,
) -> None:
    """Exhaustively: each option's probability is the product of its tokens' own."""
    choice = await select(backend, OPTIONS, then="\n")
    tokenizer = backend.engine.tokenizer
    prompt = tokenizer.encode("Is the sky green? Answer:")
    exact = {}
    for option in OPTIONS:
        ids = tokenizer.encode(option + "\n", add_special_tokens=False)
        total = 0.0
        for place, token in enumerate(ids):
            everything = backend.engine.info.vocab_size
            params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=everything)
            request = ask([*prompt, *ids[:place]], params=params)
            async with backend.engine.submit(request) as stream:
                [delta] = [delta async for delta in stream]
            total += dict(delta.logprobs[0].top)[token]
        exact[option] = math.exp(total)
    whole = sum(exact.values())
    expected = {option: value / whole for option, value in exact.items()}

    assert choice.probs == pytest.approx(expected, rel=1e-3)
    assert choice == max(expected, key=expected.__getitem__)


async def test_the_options_take_one_step_after_the_prompt(backend: EmbeddedBackend) -> None:
    @program(backend=backend)
    async def choosing(p: Prompt) -> str:
        p += "Is the sky green? Answer:"
        await p.commit()
        before = backend.engine.stats().steps
        await p.select("answer", OPTIONS)
        # Options that share a beginning wait for it once.
        assert backend.engine.stats().steps - before <= 3
        return "ok"

    assert await choosing() == "ok"


LOGPROBS = st.floats(-20, -0.01)


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 3), LOGPROBS), min_size=1, max_size=4), min_size=1)
)
def test_probabilities_add_up_and_the_choice_is_the_likeliest(
    rows: list[list[tuple[int, float]]],
) -> None:
    scored = [
        OptionTokens(tuple(t for t, _ in row), tuple(value for _, value in row)) for row in rows
    ]
    names = [str(index) for index in range(len(rows))]

    choice = choose(names, scored, "joint")

    assert math.fsum(choice.probs.values()) == pytest.approx(1.0)
    assert choice.probs[choice] == max(choice.probs.values())
    drawn = choose(names, scored, "joint", pick=0.999999999)
    assert drawn in names
