"""Tools: what a model is told of a function, and the loop that calls it."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import threading
from typing import TYPE_CHECKING, Any, Literal

import pytest
from pydantic import TypeAdapter

from radixserve.errors import IncompleteError, InvalidRequestError, RoleError, StepLimitError
from radixserve.frontend import Prompt, ToolEnd, ToolStart, program, session
from radixserve.frontend.act import Stop, with_instructions
from radixserve.frontend.pieces import Generated, Text, Transcript, Turn
from radixserve.frontend.tools import MAX_CALLS, UNKNOWN_PAUSE_S, Tool, Toolbox
from tests.frontend.served import WAYS, served

if TYPE_CHECKING:
    from radixserve.frontend import EmbeddedBackend

Side = Literal["left", "right"]


@dataclasses.dataclass
class Place:
    x: Literal[1, 2]
    y: Literal[1, 2]


def look(side: Side, far: bool = False) -> str:
    """Look somewhere
    and tell what is there.

    Args:
        side: Where to look.
        far: Whether to
            squint.

    Returns: what is there.
    """
    return f"{side} {far}"


async def walk(place: Place) -> dict[str, int]:
    """Go somewhere."""
    return {"x": place.x, "y": place.y}


@program(max_tokens=160)
async def wandering(p: Prompt, tools: list[Any], options: dict[str, Any]) -> str:
    p.system("You wander.")
    p.user("Where is it?")
    return str(await p.act(tools, result=Literal["here", "there"], **options))


async def first(condition: Any, backend: EmbeddedBackend, tools: list[Any], **options: Any) -> Any:
    """Return the first run, over some seeds, of which something is so: (events, error)."""
    for seed in range(40):
        run = wandering.using(backend, seed=seed)
        found: list[Any] = []
        try:
            async for event in run.stream(tools, options):
                found.append(event)  # noqa: PERF401  what came before a failure counts
            error: Exception | None = None
        except Exception as failed:
            error = failed
        if condition(found, error):
            return found, error
    raise AssertionError("no seed does it")


def starts(events: list[Any]) -> list[ToolStart]:
    return [event for event in events if isinstance(event, ToolStart)]


def test_a_tool_is_told_of_by_its_signature_and_its_docstring() -> None:
    tool = Tool.of(look)
    assert tool.description == "Look somewhere and tell what is there."
    assert tool.schema["properties"]["side"] == {
        "description": "Where to look.",
        "enum": ["left", "right"],
        "title": "Side",
        "type": "string",
    }
    assert tool.schema["properties"]["far"]["type"] == "boolean"
    assert tool.schema["required"] == ["side"]
    assert json.loads(tool.describe())["name"] == "look"


async def test_an_argument_that_is_left_out_has_its_default() -> None:
    tool = Tool.of(look)
    assert await tool.call(tool.arguments(side="left")) == "left False"
    assert tool.given(tool.arguments(side="left")) == {"side": "left"}
    assert await tool.call(tool.arguments(side="left", far=True)) == "left True"


async def test_a_plain_function_does_not_stop_the_loop() -> None:
    def where() -> str:
        """Say where this runs."""
        return threading.current_thread().name

    tool = Tool.of(where)
    assert await tool.call(tool.arguments()) != threading.current_thread().name


async def test_how_long_a_tool_takes_is_learnt() -> None:
    async def quick() -> None:
        """Do nothing."""

    async def never() -> None:
        """Is not called."""

    tool = Tool.of(quick)
    assert tool.pause_s == UNKNOWN_PAUSE_S
    for _ in range(3):
        await tool.call(tool.arguments())
    assert 0 <= Tool.of(quick).pause_s < UNKNOWN_PAUSE_S
    assert Toolbox([quick, never], str, parallel=True).pause_s == UNKNOWN_PAUSE_S


def untyped(x) -> str:
    return str(x)


def odd(x: threading.Thread) -> str:
    return str(x)


@pytest.mark.parametrize("tools", [[], [look, look], [untyped], [odd], [3], [lambda: 1]])
def test_what_cannot_be_a_tool_is_refused(tools: list[Any]) -> None:
    with pytest.raises(InvalidRequestError):
        Toolbox(tools, str, parallel=True)


async def test_the_model_calls_tools_until_it_answers(backend: EmbeddedBackend) -> None:
    events, _ = await first(
        lambda events, error: error is None and len(starts(events)) >= 2,
        backend,
        [look, walk],
        max_steps=20,
    )
    ends = [event for event in events if isinstance(event, ToolEnd)]
    assert events[-1].value in ("here", "there")
    assert sorted(start.path for start in starts(events)) == sorted(end.path for end in ends)
    assert starts(events)[0].path.startswith("wandering.act[0].")
    results = {end.path: end.result for end in ends}
    for start in starts(events):
        if start.tool == "look":
            side, far = start.arguments["side"], start.arguments.get("far", False)
            assert results[start.path] == f"{side} {far}"
        else:
            place = start.arguments["place"]
            assert results[start.path] == json.dumps({"x": place.x, "y": place.y})


async def test_what_tools_tell_is_in_the_prompt(backend: EmbeddedBackend) -> None:
    for seed in range(40):
        async with session(backend=backend, seed=seed, max_tokens=160) as p:
            p.user("Where is it?")
            try:
                answer = await p.act([walk], result=Literal["here"], max_steps=20)
            except (StepLimitError, IncompleteError):
                continue
            if len(p.transcript.turns) < 5:
                continue
            system, user, calls, results, *_, last = p.transcript.turns
            assert answer == "here"
            assert (system.role, user.text) == ("system", "Where is it?")
            assert '"name": "walk"' in system.text
            called = json.loads(calls.text)["calls"]
            told = json.loads(results.text)["results"]
            assert len(called) == len(told)
            assert told[0]["result"] == json.dumps(called[0]["arguments"]["place"])
            assert json.loads(last.text) == {"answer": "here"}
            return
    raise AssertionError("no seed does it")


async def test_several_tools_are_called_in_a_step_if_they_may_be(
    backend: EmbeddedBackend,
) -> None:
    def are_twins(events: list[Any], error: Exception | None) -> bool:
        return any("[1]" in start.path.rpartition(".")[2] for start in starts(events))

    await first(are_twins, backend, [look], max_steps=3)


@pytest.mark.parametrize(("parallel", "most"), [(True, MAX_CALLS), (False, 1)])
def test_calls_in_a_step_are_bounded(parallel: bool, most: int) -> None:
    schema = TypeAdapter(Toolbox([look], str, parallel=parallel).step).json_schema()
    assert schema["$defs"]["Calls"]["properties"]["calls"]["maxItems"] == most


async def test_a_failing_tool_is_told_to_the_model_or_raised(backend: EmbeddedBackend) -> None:
    def fail(side: Side) -> str:
        """Look."""
        raise LookupError(f"nothing on the {side}")

    def has_started(events: list[Any], error: Exception | None) -> bool:
        return bool(starts(events))

    events, error = await first(has_started, backend, [fail], max_steps=4)
    ends = [event for event in events if isinstance(event, ToolEnd)]
    assert ends[0].result.startswith("LookupError: nothing on the")
    assert error is None or isinstance(error, StepLimitError)
    _, error = await first(has_started, backend, [fail], on_tool_error="raise")
    assert isinstance(error, LookupError)
    assert error.__notes__[0].startswith("in wandering.act[")


async def test_a_tool_can_end_the_loop(backend: EmbeddedBackend) -> None:
    async def stop(side: Side) -> str:
        """Stop."""
        raise Stop(f"stopped on the {side}")

    events, error = await first(lambda events, error: bool(starts(events)), backend, [stop])
    assert error is None
    assert events[-1].value.startswith("stopped on the ")


async def test_steps_are_limited(backend: EmbeddedBackend) -> None:
    _, error = await first(lambda events, error: error is not None, backend, [look], max_steps=1)
    assert isinstance(error, StepLimitError)
    assert json.loads(error.partial)["calls"]


async def test_a_loop_that_is_given_up_gives_its_tools_up(backend: EmbeddedBackend) -> None:
    running, ended = asyncio.Event(), []

    async def wait(side: Side) -> str:
        """Wait for ever."""
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(side)
        return ""

    for seed in range(40):
        task = asyncio.ensure_future(wandering.using(backend, seed=seed)([wait], {}))
        waiting = asyncio.ensure_future(running.wait())
        await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert ended
            return
        waiting.cancel()
    raise AssertionError("no seed does it")


async def test_the_same_steps_are_taken_everywhere(backend: EmbeddedBackend) -> None:
    async with served(backend.engine) as server:
        found = []
        for way in WAYS:
            async with server.reached(way) as reached:
                run = wandering.using(reached, seed=6).new_run()
                try:
                    await wandering.using(reached).run_item(run, 0, ([look], {}))
                except (StepLimitError, IncompleteError):
                    assert run.report.calls
                found.append([call.text for call in run.report.calls])
        assert found[0] == found[1]
        assert found[2]


def chat(*turns: tuple[str, str]) -> Transcript:
    return Transcript(turns=tuple(Turn(role, (Text(text),)) for role, text in turns))


def test_tools_are_described_where_the_most_is_shared() -> None:
    with_system = with_instructions(chat(("system", "S"), ("user", "U")), "tools")
    assert [turn.text for turn in with_system.turns] == ["S\n\ntools", "U"]
    without = with_instructions(chat(("user", "U")), "tools")
    assert [(turn.role, turn.text) for turn in without.turns] == [
        ("system", "tools"),
        ("user", "U"),
    ]
    assert with_instructions(without, "tools") == without

    said = chat(("user", "U"))
    said = said.with_turn(Turn("assistant", (Generated("A", (5,)),)))
    said = said.with_turn(Turn("user", (Text("V"),)))
    later = with_instructions(said, "tools")
    assert later.turns[:2] == said.turns[:2]
    assert later.turns[2].text == "V\n\ntools"


@pytest.mark.parametrize(
    "transcript", [Transcript(), Transcript().plus(Text("a")), chat(("assistant", "A"))]
)
def test_tools_need_a_question(transcript: Transcript) -> None:
    with pytest.raises(RoleError):
        with_instructions(transcript, "tools")


@pytest.mark.parametrize("options", [{"max_steps": 0}, {"on_tool_error": "hide"}])
async def test_options_that_make_no_sense_are_refused(
    backend: EmbeddedBackend, options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidRequestError):
        await wandering.using(backend)([look], options)
