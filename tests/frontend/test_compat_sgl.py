"""Programs in the style of SGLang's README, with the import changed."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import TYPE_CHECKING, Any

import pytest

import radixserve.compat.sgl as sgl
from radixserve.errors import (
    InvalidRequestError,
    ProgramError,
    RoleError,
    UnsupportedFeatureError,
    UnsupportedGrammarError,
)
from radixserve.frontend import EmbeddedBackend
from radixserve.frontend.loop_thread import run_blocking
from tests.kit.engines import assert_idle, engine_config, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def backend(folder: Path) -> Iterator[EmbeddedBackend]:
    """Return the default backend, and prove at the end that nothing is left: no work, no thread."""

    def programs() -> set[str]:
        """Names of the threads in which programs run."""
        return {t.name for t in threading.enumerate() if t.name.startswith("radixserve-sgl")}

    backend = EmbeddedBackend(config=engine_config(folder))
    run_blocking(backend.start())
    sgl.set_default_backend(backend)
    yield backend

    async def idle() -> None:
        core = backend.engine.core
        await until(lambda: not core.has_work)
        assert_idle(core)
        await until(lambda: not programs())

    run_blocking(idle())
    run_blocking(backend.close())


@sgl.function
def multi_turn(s, question_1, question_2):
    s += sgl.system("You are a helpful assistant.")
    s += sgl.user(question_1)
    s += sgl.assistant(sgl.gen("answer_1", max_tokens=8))
    s += sgl.user(question_2)
    s += sgl.assistant(sgl.gen("answer_2", max_tokens=8))


@sgl.function
def few_shot(s, question):
    for shot, label in (("great", "pos"), ("dull", "neg")):
        s += f"Review: {shot}\nLabel: {label}\n\n"
    s += f"Review: {question}\nLabel: " + sgl.select("label", choices=["pos", "neg"])


@sgl.function
def tips(s):
    s += "Here are two tips for staying healthy: 1. Balanced Diet. 2. Regular Exercise.\n\n"
    forks = s.fork(2)
    for i, f in enumerate(forks):
        f += f"Now, expand tip {i + 1} into a paragraph:\n"
        f += sgl.gen("detailed_tip", max_tokens=8, stop="\n\n")
    s += "Tip 1:" + forks[0]["detailed_tip"] + "\n"
    s += "Tip 2:" + forks[1]["detailed_tip"] + "\n"
    s += "In summary" + sgl.gen("summary", max_tokens=6)


@sgl.function
def character(s, name):
    s += name + " is a character. Please fill in the following.\n"
    s += sgl.gen("json_output", max_tokens=64, regex=r'\{"name": "[a-z]{1,8}", "age": [0-9]{1,3}\}')


def test_a_chat_of_several_turns(backend: EmbeddedBackend) -> None:
    state = multi_turn.run(question_1="What is it?", question_2="And then?", temperature=0)
    roles = ["system", "user", "assistant", "user", "assistant"]
    messages = state.messages()
    assert [message["role"] for message in messages] == roles
    assert messages[2]["content"] == state["answer_1"]
    assert messages[4]["content"] == state["answer_2"]
    assert state.text().endswith("assistant: " + state["answer_2"])
    assert state.get_meta_info("answer_2")["cached_tokens"] > 0
    again = multi_turn.run("What is it?", "And then?", temperature=0)
    assert (again["answer_1"], again["answer_2"]) == (state["answer_1"], state["answer_2"])


def test_a_choice_after_shots(backend: EmbeddedBackend) -> None:
    state = few_shot.run(question="fine")
    assert state["label"] in ("pos", "neg")
    assert state.text().endswith("Label: " + state["label"])
    assert sum(state.get_meta_info("label")["probs"].values()) == pytest.approx(1)


def test_tips_expanded_side_by_side(backend: EmbeddedBackend) -> None:
    state = tips.run(temperature=0)
    assert state.text().endswith("In summary" + state["summary"])
    assert "Tip 1:" in state.text()


def test_an_output_that_follows_a_pattern(backend: EmbeddedBackend) -> None:
    state = character.run(name="Ann")
    assert set(json.loads(state["json_output"])) == {"name", "age"}


@pytest.mark.parametrize(
    ("part", "pattern"),
    [
        (sgl.gen_int("x", max_tokens=24), r"-?\d+"),
        (sgl.gen("x", dtype=bool), "True|False"),
        (sgl.gen("x", dtype=float, max_tokens=40), r"-?[\d.]+"),
        (sgl.gen("x", choices=["aa", "b"], choices_method=sgl.greedy_token_selection), "aa|b"),
        (sgl.gen("x", json_schema='{"enum": [1, 2]}'), "1|2"),
    ],
)
def test_values_are_the_texts(backend: EmbeddedBackend, part: Any, pattern: str) -> None:
    import re

    @sgl.function
    def one(s):
        s += "Value: " + part + "!"

    state = one.run()
    assert re.fullmatch(pattern, state["x"])
    assert state.text() == "Value: " + state["x"] + "!"


def test_several_samples_are_a_list(backend: EmbeddedBackend) -> None:
    @sgl.function
    def several(s):
        s += "Once" + sgl.gen("x", n=3, max_tokens=4)

    found = several.run()["x"]
    assert len(found) == 3
    assert len(set(found)) > 1


def test_control_flow_follows_what_was_generated(backend: EmbeddedBackend) -> None:
    @sgl.function
    def tool_use(s, question):
        s += "To answer: " + question + ", I need a "
        s += sgl.gen("tool", choices=["calculator", "search engine"])
        if s["tool"] == "calculator":
            s += ". The math expression is" + sgl.gen("expression", max_tokens=4)
        elif s["tool"] == "search engine":
            s += ". The key word to search is" + sgl.gen("word", max_tokens=4)
        return s["tool"]

    state = tool_use.run(question="2 + 2")
    assert state.ret_value == state["tool"]
    assert ("expression" in state) is (state["tool"] == "calculator")


def test_roles_can_be_begun_and_ended(backend: EmbeddedBackend) -> None:
    @sgl.function
    def by_hand(s):
        s += sgl.system_begin() + "Be brief." + sgl.system_end()
        s += sgl.user_begin()
        s += "One: "
        s += "two"
        s += sgl.user_end()
        with s.assistant():
            s += "Sure, " + sgl.gen("a", max_tokens=4)
            s += "."
        with s.user():
            s += "More"
        s += sgl.gen("b", max_tokens=3)

    state = by_hand.run(temperature=0)
    contents = [message["content"] for message in state.messages()]
    assert contents == ["Be brief.", "One: two", "Sure, " + state["a"] + ".", "More", state["b"]]


def test_forks_before_any_text_and_within_forks_work(backend: EmbeddedBackend) -> None:
    @sgl.function
    def nested(s, depth):
        s += ""
        forks = s.fork(3)
        forks += lambda i: f"branch {i} " * depth
        for fork in forks:
            inner = fork.fork(2)
            inner += "inner "
            deepest = inner[0].fork(1)
            deepest += ["deep " + sgl.gen("x", max_tokens=3)]
            deepest.join()
            inner += sgl.gen("x", max_tokens=3)
            inner.join()
        forks.join()

    state = nested.run(depth=1)
    assert len(state["x"]) == 3
    assert all(len(found) == 2 for found in state["x"])


def test_joined_texts_stand_one_after_the_other(backend: EmbeddedBackend) -> None:
    @sgl.function
    def joining(s):
        s += "Start."
        forks = s.fork(2)
        forks += [" One:" + sgl.gen("x", max_tokens=3), " Two:" + sgl.gen("x", max_tokens=3)]
        forks.join("concate_and_append")
        s += " End."

    state = joining.run(temperature=0)
    one, two = state["x"]
    assert state.text() == f"Start. One:{one} Two:{two} End."


def test_a_copy_does_not_become_part_of_the_state(backend: EmbeddedBackend) -> None:
    @sgl.function
    def copying(s):
        s += "Question"
        with s.copy() as tmp:
            tmp += " thinking" + sgl.gen("thought", max_tokens=4)
            s["thought"] = tmp["thought"]
        s += " answer"

    state = copying.run()
    assert state.text() == "Question answer"
    assert state["thought"]


def test_texts_are_streamed_as_they_come(backend: EmbeddedBackend) -> None:
    state = multi_turn.run("What?", "Why?", stream=True, temperature=0)
    pieces = list(state.text_iter("answer_1"))
    assert "".join(pieces) == state["answer_1"]
    assert len(pieces) > 1
    assert "".join(state.text_iter("answer_2")) == state["answer_2"]
    assert "".join(state.text_iter()) == (
        "You are a helpful assistant.What?" + state["answer_1"] + "Why?" + state["answer_2"]
    )


def test_texts_are_streamed_into_another_event_loop(backend: EmbeddedBackend) -> None:
    async def read() -> str:
        state = multi_turn.run("What?", "Why?", stream=True, temperature=0)
        return "".join([text async for text in state.text_async_iter("answer_2")])

    assert asyncio.run(read()) == multi_turn.run("What?", "Why?", temperature=0)["answer_2"]


def test_leaving_a_stream_gives_the_program_up(backend: EmbeddedBackend) -> None:
    @sgl.function
    def endless(s):
        s += "Once"
        for number in range(100):
            s += sgl.gen(f"x{number}", max_tokens=200)

    state = endless.run(stream=True)
    texts = state.text_iter("x0")
    assert next(texts)
    texts.close()
    with pytest.raises(ProgramError, match="given up"):
        _ = state["x99"]


def test_a_batch_has_its_results_in_order(backend: EmbeddedBackend) -> None:
    questions = [{"question": f"number {n}"} for n in range(12)]
    states = few_shot.run_batch(questions, num_threads=4, progress_bar=True)
    assert [state.text().split("number ")[1].split("\n")[0] for state in states] == [
        str(n) for n in range(12)
    ]
    iterated = few_shot.run_batch(questions, num_threads=4, generator_style=True)
    assert [state["label"] for state in iterated] == [state["label"] for state in states]


def test_the_threads_of_a_batch_are_bounded(backend: EmbeddedBackend) -> None:
    most = 0

    @sgl.function
    def counting(s, n):
        nonlocal most
        forks = s.fork(4)
        forks += sgl.gen("x", max_tokens=2)
        running = [t for t in threading.enumerate() if t.name.startswith("radixserve-sgl")]
        most = max(most, len(running))
        forks.join()

    counting.run_batch([{"n": n} for n in range(20)], num_threads=3)
    assert 1 <= most <= 3


def test_a_failure_reaches_whoever_runs_or_reads(backend: EmbeddedBackend) -> None:
    @sgl.function
    def wrong(s):
        s += "x"
        forks = s.fork(3)
        forks += ["a" + sgl.gen("x", max_tokens=2), sgl.gen("x", regex="("), "c"]
        s["seen"] = True
        forks.join()

    with pytest.raises(UnsupportedGrammarError) as failed:
        wrong.run()
    assert failed.value.__notes__ == ["in wrong.fork[1].gen('x')"]

    @sgl.function
    def reading(s):
        s += "x" + sgl.gen("y", regex="(")
        return s["y"]

    with pytest.raises(UnsupportedGrammarError):
        reading.run()
    with pytest.raises(KeyError):
        _ = few_shot.run(question="fine")["nothing"]


def test_the_others_of_a_batch_keep_their_results(backend: EmbeddedBackend) -> None:
    @sgl.function
    def third_fails(s, n):
        s += f"Number {n}:"
        branch = s.fork(1)[0]
        branch += sgl.gen("x", max_tokens=3)
        if n == 2:
            raise ValueError("the third")
        s["x"] = branch["x"]

    states = third_fails.run_batch([{"n": n} for n in range(5)])
    assert isinstance(states, list)
    failures = [state.error() for state in states]
    assert [failure is None for failure in failures] == [True, True, False, True, True]
    assert all(states[n]["x"] for n in (0, 1, 3, 4))
    assert failures[2] is not None


def test_a_program_can_run_others(backend: EmbeddedBackend) -> None:
    @sgl.function
    def expand(s, tip):
        s += "Expand: " + tip + sgl.gen("detail", max_tokens=4)

    @sgl.function
    def outer(s):
        details = [expand(tip="diet"), expand(tip="exercise")]
        for detail in details:
            s += detail["detail"] + ";"

    text = outer.run(temperature=0).text()
    assert text.count(";") >= 2


def test_arguments_can_be_bound(backend: EmbeddedBackend) -> None:
    bound = multi_turn.bind(question_2="Why?")
    assert bound.run(question_1="What?").messages()[3]["content"] == "Why?"


def test_a_server_runs_the_same_programs(backend: EmbeddedBackend) -> None:
    from radixserve.frontend import RemoteBackend
    from tests.frontend.served import served

    async def begin() -> tuple[Any, RemoteBackend]:
        context = served(backend.engine)
        server = await context.__aenter__()
        return context, RemoteBackend(server.url)

    async def end(context: Any, remote: RemoteBackend) -> None:
        await remote.close()
        await context.__aexit__(None, None, None)

    context, remote = run_blocking(begin())
    there = multi_turn.run("What?", "Why?", temperature=0, backend=remote)
    here = multi_turn.run("What?", "Why?", temperature=0)
    assert there.text() == here.text()
    run_blocking(end(context, remote))


@pytest.mark.parametrize(
    ("run", "error"),
    [
        (lambda: sgl.gen("x", min_p=0.1), UnsupportedFeatureError),
        (lambda: sgl.gen("x", max_tokenz=1), InvalidRequestError),
        (lambda: sgl.gen("x", dtype=list), InvalidRequestError),
        (lambda: sgl.select("x", choices=[]), InvalidRequestError),
        (lambda: sgl.function(num_api_spec_tokens=3), UnsupportedFeatureError),
        (lambda: sgl.gen("x") + 3, TypeError),  # type: ignore[operator]
        (lambda: few_shot.run(question="a", colour="red"), InvalidRequestError),
    ],
)
def test_what_is_not_there_is_refused_by_name(
    backend: EmbeddedBackend, run: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        run()


def test_the_model_does_not_write_the_users_turn(backend: EmbeddedBackend) -> None:
    @sgl.function
    def confused(s):
        s += sgl.user("Hi" + sgl.gen("x"))

    with pytest.raises(RoleError):
        confused.run()
