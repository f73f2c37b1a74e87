"""Programs on an engine in this process: writing, generating, choosing, branching, failing."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
from typing import TYPE_CHECKING, Any, Literal

import pytest
from pydantic import BaseModel, field_validator

from radixserve.errors import (
    BudgetExceededError,
    IncompleteError,
    InvalidRequestError,
    PromptTooLongError,
    RoleError,
    ValidationFailedError,
)
from radixserve.frontend import Choice, Delta, Prompt, Restart, Result, Value, program, session
from tests.kit.engines import until

if TYPE_CHECKING:
    from radixserve.frontend import EmbeddedBackend


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"


@dataclasses.dataclass
class Point:
    x: Literal[1, 2]
    y: Literal["a", "b"]


@program(max_tokens=12)
async def story(p: Prompt, subject: str) -> str:
    p += f"A story about {subject}: "
    text: str = await p.gen("story", temperature=0.0)
    return text


async def test_a_program_returns_what_the_model_wrote(backend: EmbeddedBackend) -> None:
    first = await story.using(backend)("a cat")

    assert first
    assert await story.using(backend)("a cat") == first


async def test_a_program_can_be_rendered_without_a_model() -> None:
    assert story.render("a cat") == "A story about a cat: "


async def test_pieces_of_text_make_the_prompt_that_the_whole_makes(
    backend: EmbeddedBackend,
) -> None:
    @program(max_tokens=8, backend=backend)
    async def in_pieces(p: Prompt, pieces: list[str]) -> str:
        for piece in pieces:
            p += piece
        return str(await p.gen(temperature=0.0))

    whole = "The quick brown fox, 12345 jumps over the lazy dogs"
    expected = await in_pieces([whole])

    for cut in range(1, len(whole)):
        assert await in_pieces([whole[:cut], whole[cut:]]) == expected
    assert await in_pieces(list(whole)) == expected


async def test_a_chat_goes_on_from_the_very_tokens_that_were_sampled(
    backend: EmbeddedBackend,
) -> None:
    seen: list[list[int]] = []
    encode = backend.encoder.encode

    async with session(backend=backend, max_tokens=9) as p:
        p.system("You are terse.")
        p.user("hello")
        await p.gen("one", temperature=1.0)
        seen.append(encode(p.transcript))
        p.user("and again")
        await p.gen("two", temperature=1.0)
        seen.append(encode(p.transcript))

    assert seen[1][: len(seen[0])] == seen[0]
    first, second = p.report.calls
    # All of the first turn but what the last step sampled is in the cache.
    assert second.usage.cached_tokens >= first.usage.input_tokens + 8


async def test_branches_share_what_was_written_before_the_fork(backend: EmbeddedBackend) -> None:
    @program(max_tokens=4, backend=backend)
    async def branching(p: Prompt) -> list[str]:
        p += "x y z " * 20
        await p.commit()

        async def grow(branch: Prompt, word: str) -> str:
            branch += word
            return str(await branch.gen("word", temperature=0.0))

        return [str(text) for text in await p.each(grow, ["red ", "green ", "blue "])]

    run = branching.new_run()
    texts = await branching.run_item(run, 0, ())

    assert len(texts) == 3
    warm, *gens = run.report.calls
    for call in gens:
        assert call.usage.cached_tokens >= warm.usage.input_tokens - 2


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (bool, {True, False}),
        (Literal["yes", "no", "not sure"], {"yes", "no", "not sure"}),
        (Literal[1, 2, 30], {1, 2, 30}),
        (Colour, set(Colour)),
    ],
)
async def test_a_value_of_few_is_one_of_them(
    backend: EmbeddedBackend, kind: Any, values: set[Any]
) -> None:
    @program(backend=backend)
    async def typed(p: Prompt, seed: int) -> Any:
        p += "Answer: "
        return await p.gen("x", kind, seed=seed)

    found = [await typed(seed) for seed in range(4)]

    assert all(value in values for value in found)


async def test_numbers_and_records_have_their_types(backend: EmbeddedBackend) -> None:
    @program(backend=backend, max_tokens=64)
    async def typed(p: Prompt) -> tuple[int, float, Point, list[bool]]:
        p += "Answer: "
        return (
            await p.gen("i", int, temperature=0.0),
            await p.gen("f", float, temperature=0.0),
            await p.gen("p", Point, temperature=0.0),
            await p.gen("l", schema={"type": "array", "items": {"enum": [True]}, "maxItems": 2}),
        )

    number, fraction, point, flags = await typed()

    assert type(number) is int
    assert type(fraction) is float
    assert isinstance(point, Point)
    assert all(flag is True for flag in flags)


async def test_a_typed_value_that_is_cut_says_so_and_where(backend: EmbeddedBackend) -> None:
    @program(backend=backend)
    async def cut(p: Prompt) -> Any:
        p += "Answer: "
        return await p.gen("point", Point, max_tokens=2)

    with pytest.raises(IncompleteError) as failed:
        await cut()

    assert failed.value.reason == "length"
    assert failed.value.__notes__ == ["in cut.gen('point')"]


class Odd(BaseModel):
    n: Literal[1, 2, 3, 4]

    @field_validator("n")
    @classmethod
    def is_odd(cls, n: int) -> int:
        if n % 2 == 0:
            raise ValueError("it is even")
        return n


async def test_attempts_that_fail_do_not_become_part_of_the_prompt(
    backend: EmbeddedBackend,
) -> None:
    @program(backend=backend, max_tokens=24)
    async def odd(p: Prompt, seed: int, retries: int) -> tuple[Odd, str]:
        p += "Odd: "
        value = await p.gen("odd", Odd, retries=retries, seed=seed)
        return value, p.text()

    retried = 0
    for seed in range(12):
        run = odd.new_run()
        value, text = await odd.run_item(run, 0, (seed, 30))
        assert value.n in (1, 3)
        assert text.count("{") == 1
        retried += run.report.retries
    assert retried > 0

    results = await asyncio.gather(*(odd(s, 0) for s in range(12)), return_exceptions=True)
    failures = [result for result in results if isinstance(result, ValidationFailedError)]
    [(text, why)] = failures[0].attempts
    assert "it is even" in why
    assert text.startswith("{")


async def test_streams_tell_named_values_and_end_with_the_result(
    backend: EmbeddedBackend,
) -> None:
    @program(backend=backend, max_tokens=24)
    async def two(p: Prompt) -> str:
        p += "A: "
        await p.gen("a", temperature=0.0)
        p += " B: "
        await p.gen("b", Odd, retries=40, seed=5)
        return "done"

    events = [event async for event in two.stream()]

    assert events[-1] == Result("done")
    values = {event.name: event.value for event in events if isinstance(event, Value)}
    texts = {"a": "", "b": ""}
    for event in events:
        if isinstance(event, Delta) and event.name is not None:
            texts[event.name] += event.text
        if isinstance(event, Restart) and event.name is not None:
            texts[event.name] = ""
    assert texts["a"] == values["a"]
    assert Odd.model_validate_json(texts["b"]) == values["b"]


async def test_leaving_a_stream_gives_the_run_up(backend: EmbeddedBackend) -> None:
    @program(backend=backend, max_tokens=800)
    async def endless(p: Prompt) -> str:
        p += "Once "
        return str(await p.gen("text", grammar="start: /[a-z ]{700,}/"))

    async for event in endless.stream():
        assert isinstance(event, Delta)
        break
    # The fixture proves that nothing is left on the engine.


async def test_cancelling_a_program_gives_its_calls_up(backend: EmbeddedBackend) -> None:
    @program(backend=backend, max_tokens=800)
    async def many(p: Prompt) -> list[Any]:
        p += "Once "

        async def grow(branch: Prompt, index: int) -> str:
            branch += str(index)
            return str(await branch.gen(grammar="start: /[a-z ]{700,}/"))

        return await p.each(grow, range(8))

    task = asyncio.ensure_future(many())
    await until(lambda: backend.engine.stats().output_tokens > 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_failing_sibling_cancels_the_others_and_names_the_call(
    backend: EmbeddedBackend,
) -> None:
    @program(name="judge", backend=backend, max_tokens=700)
    async def siblings(p: Prompt) -> Any:
        p += "Once "

        async def grow(branch: Prompt, index: int) -> str:
            if index == 1:
                branch += "too long " * 5000
            return str(await branch.gen("step", grammar="start: /[a-z ]{600,}/"))

        return await p.each(grow, range(3))

    with pytest.raises(PromptTooLongError) as failed:
        await siblings()
    assert failed.value.__notes__ == ["in judge.fork[1].gen('step')"]


async def test_a_prompt_is_usable_after_an_exception(backend: EmbeddedBackend) -> None:
    @program(backend=backend, max_tokens=4)
    async def resilient(p: Prompt) -> str:
        p += "Answer: "
        with pytest.raises(IncompleteError):
            await p.gen("point", Point, max_tokens=1)
        assert p.text() == "Answer: "
        return str(await p.gen(temperature=0.0))

    assert await resilient()


async def test_select_returns_probabilities_that_follow_the_options(
    backend: EmbeddedBackend,
) -> None:
    @program(backend=backend)
    async def choosing(p: Prompt, options: list[str]) -> Choice:
        p += "Is it so? Answer:"
        return await p.select("answer", options)

    options = [" no", " not sure", " yes"]
    choice = await choosing(options)
    turned = await choosing(options[::-1])

    assert choice in options
    assert sum(choice.probs.values()) == pytest.approx(1.0)
    assert turned == choice
    assert turned.probs == pytest.approx(choice.probs)


async def test_roles_are_kept_apart(backend: EmbeddedBackend) -> None:
    async with session(backend=backend, max_tokens=4) as p:
        p.user("hello")
        with pytest.raises(RoleError):
            p += "text between turns"
        with p.assistant():
            p += "Sure: "
            await p.gen("x", temperature=0.0)
            with pytest.raises(RoleError):
                p.user("nested")
        with pytest.raises(RoleError):
            await p.gen("y")
    async with session(backend=backend) as p:
        p += "plain"
        with pytest.raises(RoleError):
            p.system("late")


async def test_a_budget_ends_a_run(backend: EmbeddedBackend) -> None:
    @program(backend=backend, budget=30, max_tokens=20)
    async def spending(p: Prompt) -> None:
        while True:
            p += "more "
            await p.gen(temperature=0.0)

    with pytest.raises(BudgetExceededError):
        await spending()


@pytest.mark.parametrize(
    "fields", [{"n": 0}, {"retries": -1}, {"max_token": 4}, {"regex": "a", "grammar": "b"}]
)
async def test_options_that_make_no_sense_are_refused(
    backend: EmbeddedBackend, fields: dict[str, Any]
) -> None:
    async with session(backend=backend) as p:
        p += "x"
        with pytest.raises(InvalidRequestError):
            await p.gen("y", **fields)
