"""`Engine`: all at once or step by step, and nothing left behind when something fails."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from radixserve.engine.sync_engine import Engine
from radixserve.errors import (
    BackendError,
    ConfigError,
    InvalidRequestError,
    PromptTooLongError,
    RequestError,
)
from radixserve.types import FinishReason, SamplingParams
from tests.kit.engines import ask, assert_idle, engine_config
from tests.kit.tiny_model import write_tiny_model
from tests.kit.tiny_tokenizer import write_tiny_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

    from radixserve.core.plan import StepPlan, StepResult
    from tests.engine.conftest import MakeEngine

TEXTS = ["The capital of France is", "the parrot said: ", "def add(a, b):", "Once upon a time"]
GREEDY = SamplingParams(temperature=0.0, max_tokens=8)
PROMPT = list(range(10, 40))
GONE = BackendError("the device is gone")


@pytest.fixture
def engine(make_engine: MakeEngine) -> Engine:
    return make_engine(max_num_seqs=2)


def fail_at(engine: Engine, step: int, error: BaseException = GONE) -> None:
    """Let one forward pass, `step` steps from now, fail."""
    execute, countdown = engine.core._runner.execute, step

    def failing(plan: StepPlan) -> StepResult:
        nonlocal countdown
        countdown -= 1
        if countdown == 0:
            raise error
        return execute(plan)

    engine.core._runner.execute = failing  # type: ignore[method-assign]


# -- all at once -------------------------------------------------------------------------------


def test_completions_come_in_the_order_of_the_prompts(engine: Engine) -> None:
    alone = [engine.generate(text, GREEDY)[0] for text in TEXTS]

    for order in (TEXTS, TEXTS[::-1]):
        together = engine.generate(order, GREEDY)
        expected = alone if order is TEXTS else alone[::-1]
        assert [c.text for c in together] == [c.text for c in expected]
        assert [c.token_ids for c in together] == [c.token_ids for c in expected]
    assert_idle(engine.core)


def test_one_text_several_texts_token_ids_and_nothing(engine: Engine) -> None:
    [one] = engine.generate(TEXTS[0], GREEDY)
    [listed] = engine.generate([TEXTS[0]], GREEDY)
    [as_ids] = engine.generate([engine.tokenizer.encode(TEXTS[0])], GREEDY)

    assert one.text == listed.text == as_ids.text
    assert engine.generate([], GREEDY) == []
    assert one.usage.prompt_tokens == len(engine.tokenizer.encode(TEXTS[0]))


def test_equal_prompts_in_one_call_are_computed_once(engine: Engine) -> None:
    completions = engine.generate([PROMPT] * 5, GREEDY)

    assert len({c.token_ids for c in completions}) == 1
    assert [c.usage.cached_tokens for c in completions] == [0, *[len(PROMPT) - 1] * 4]


def test_requests_without_a_seed_follow_the_engines_seed(make_engine: MakeEngine) -> None:
    params = SamplingParams(temperature=1.5, max_tokens=12)

    first, again = (make_engine().generate([PROMPT] * 3, params) for _ in range(2))

    assert [c.token_ids for c in first] == [c.token_ids for c in again]
    assert len({c.token_ids for c in first}) == 3


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ([], InvalidRequestError),
        ([5] * 5000, PromptTooLongError),
        ([100_000], InvalidRequestError),
        ([-3], InvalidRequestError),
    ],
)
@pytest.mark.parametrize("place", [0, 2])
def test_one_bad_prompt_refuses_all_before_anything_is_run(
    place: int, bad: list[int], error: type[RequestError], engine: Engine
) -> None:
    prompts = [PROMPT, PROMPT[::-1]]
    prompts.insert(place, bad)

    with pytest.raises(error):
        engine.generate(prompts, GREEDY)

    assert engine.stats().steps == 0
    assert_idle(engine.core)


def test_what_is_refused_late_leaves_nothing_queued(make_engine: MakeEngine) -> None:
    engine = make_engine(max_num_seqs=2)
    same_name = [ask(PROMPT, request_id="x") for _ in range(2)]
    no_stop = [ask(PROMPT), ask(PROMPT, stop=("",))]

    for requests in (same_name, no_stop):
        with pytest.raises(InvalidRequestError):
            engine.run(requests)
        assert_idle(engine.core)
        assert engine.stats().output_tokens == 0

    assert len(engine.run([ask(PROMPT, request_id="x")])) == 1


def test_there_may_be_more_prompts_than_the_queue_holds(make_engine: MakeEngine) -> None:
    engine = make_engine(max_num_seqs=2, max_queue_len=3)

    prompts = [PROMPT[:n] for n in range(1, 20)]
    completions = engine.generate(prompts, GREEDY)

    alone = [engine.generate([prompt], GREEDY)[0] for prompt in prompts]
    assert [one.token_ids for one in completions] == [one.token_ids for one in alone]
    assert_idle(engine.core)


def test_what_happens_to_added_requests_during_a_run_is_kept_for_step(engine: Engine) -> None:
    name = engine.add(ask(PROMPT, max_tokens=12))
    engine.generate(TEXTS, GREEDY)

    events = []
    while engine.has_work:
        events += engine.step()

    tokens = [token for event in events for token in event.delta.token_ids]
    assert {event.req_id for event in events} == {name}
    assert tokens == list(engine.run([ask(PROMPT, max_tokens=12)])[0].token_ids)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("min_tokens", 9),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("top_k", -1),
        ("top_p", 0.0),
        ("min_p", 1.5),
        ("repetition_penalty", 0.0),
        ("presence_penalty", float("inf")),
        ("logit_bias", ((10**6, 1.0),)),
        ("stop_token_ids", frozenset({-1})),
    ],
)
def test_a_sampling_parameter_without_meaning_is_refused_by_name(
    engine: Engine, field: str, value: object
) -> None:
    changes: dict[str, Any] = {field: value}
    params = dataclasses.replace(GREEDY, **changes)

    with pytest.raises(InvalidRequestError, match=field) as refused:
        engine.generate([PROMPT], params)

    assert refused.value.param == field
    assert_idle(engine.core)


def test_a_failed_step_gives_all_the_others_up(engine: Engine) -> None:
    fail_at(engine, 5)

    with pytest.raises(BackendError, match="the device is gone"):
        engine.generate([PROMPT[:n] for n in range(4, 10)], GREEDY)

    assert_idle(engine.core)
    assert len(engine.generate(TEXTS, GREEDY)) == len(TEXTS)
    assert_idle(engine.core)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_an_interrupt_gives_everything_up(error: type[BaseException], engine: Engine) -> None:
    fail_at(engine, 3, error())
    with pytest.raises(error):
        engine.generate(TEXTS, GREEDY)

    assert_idle(engine.core)
    assert len(engine.generate(TEXTS, GREEDY)) == len(TEXTS)


def test_a_stop_string_leaves_nothing_running(engine: Engine) -> None:
    [full] = engine.run([ask(PROMPT, max_tokens=40)])
    stop = full.text[len(full.text) // 2 :][:2]

    for _ in range(2):
        [cut] = engine.run([ask(PROMPT, max_tokens=40, stop=(stop,), request_id="same")])

        assert cut.text == full.text[: full.text.index(stop)]
        assert cut.finish_reason is FinishReason.STOP
        assert_idle(engine.core)


# -- chat --------------------------------------------------------------------------------------


def test_chat_answers_the_rendered_conversation(engine: Engine) -> None:
    messages = [{"role": "user", "content": "what is the answer?"}]
    rendered = engine.chat_template.render(messages)
    prompt = engine.tokenizer.encode(rendered, add_special_tokens=False)

    answer = engine.chat(messages, GREEDY)

    assert answer.usage.prompt_tokens == len(prompt)
    assert answer.token_ids == engine.generate([prompt], GREEDY)[0].token_ids
    assert rendered.endswith("assistant\n")


def test_chat_is_refused_where_there_is_no_template(tmp_path: Path) -> None:
    write_tiny_model(tmp_path)
    write_tiny_tokenizer(tmp_path, chat_template=None)
    engine = Engine(config=engine_config(tmp_path))

    with pytest.raises(InvalidRequestError):
        engine.chat([{"role": "user", "content": "hello"}])

    assert not engine.has_work


# -- step by step ------------------------------------------------------------------------------


def test_stepping_by_hand(engine: Engine) -> None:
    [expected] = engine.run([ask(PROMPT)])
    name = engine.add(ask(PROMPT))
    other = engine.add(ask(PROMPT[::-1], max_tokens=3, request_id="mine"))

    text: dict[str, str] = {name: "", other: ""}
    ends: list[tuple[str, FinishReason]] = []
    while engine.has_work:
        for event in engine.step():
            text[event.req_id] += event.delta.text
            if event.delta.finish_reason is not None:
                ends.append((event.req_id, event.delta.finish_reason))

    assert text[name] == expected.text
    assert ends == [("mine", FinishReason.LENGTH), (name, FinishReason.LENGTH)]
    assert_idle(engine.core)
    assert engine.step() == []


def test_an_aborted_request_ends_in_the_next_step(engine: Engine) -> None:
    names = [engine.add(ask(PROMPT, max_tokens=100)) for _ in range(3)]
    engine.step()

    for name in names:
        engine.abort(name)
        engine.abort(name)
    events = engine.step()

    assert [(event.req_id, event.delta.finish_reason) for event in events] == [
        (name, FinishReason.ABORT) for name in names
    ]
    assert_idle(engine.core)
    engine.abort(names[0])
    assert engine.step() == []


def test_a_request_aborted_in_the_inbox_is_never_computed(engine: Engine) -> None:
    engine.abort(engine.add(ask(PROMPT)))

    [event] = engine.step()

    assert event.delta.finish_reason is FinishReason.ABORT
    assert engine.stats().prompt_tokens == 0
    assert_idle(engine.core)


def test_a_failed_step_is_told_to_each_of_its_requests(engine: Engine) -> None:
    names = [engine.add(ask(PROMPT[:n])) for n in (5, 9)]
    fail_at(engine, 2)

    events = [*engine.step(), *engine.step()]

    failed = [event for event in events if event.delta.finish_reason is FinishReason.ERROR]
    assert sorted(event.req_id for event in failed) == sorted(names)
    assert {event.error for event in failed} == {"the device is gone"}
    assert_idle(engine.core)


# -- building ----------------------------------------------------------------------------------


def test_the_pool_bounds_the_context(make_engine: MakeEngine) -> None:
    engine = make_engine(num_blocks=4, block_size=16)

    assert engine.info.max_model_len == engine.info.kv_capacity_tokens == 64
    assert engine.run([ask([5] * 50, max_tokens=14)])[0].usage.completion_tokens == 14
    with pytest.raises(PromptTooLongError, match="64"):
        engine.run([ask([5] * 50, max_tokens=15)])


def test_a_context_longer_than_the_models_is_refused(folder: Path) -> None:
    config = engine_config(folder)
    object.__setattr__(config.model, "max_model_len", 1 << 20)

    with pytest.raises(ConfigError, match="max_model_len"):
        Engine(config=config)


def test_a_model_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        Engine(str(tmp_path / "nothing"))
