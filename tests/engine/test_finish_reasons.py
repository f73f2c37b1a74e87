"""Why an output ends, asked of a whole engine: end-of-sequence, stop tokens, limits."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from radixserve.types import FinishReason, SamplingParams
from tests.kit.engines import ask, assert_idle

if TYPE_CHECKING:
    from radixserve.engine.sync_engine import Engine
    from tests.engine.conftest import MakeEngine

EOS = 2
"""`<|im_end|>` of the tiny tokenizer."""

PROMPT = list(range(10, 40))
ALWAYS_EOS = SamplingParams(temperature=0.0, max_tokens=12, logit_bias=((EOS, 1000.0),))


@pytest.fixture
def engine(make_engine: MakeEngine) -> Engine:
    return make_engine()


def test_the_models_end_of_sequence_ends_the_output(engine: Engine) -> None:
    [completion] = engine.run([ask(PROMPT, params=ALWAYS_EOS, ignore_eos=False)])

    assert completion.text == ""
    assert completion.token_ids == (EOS,)
    assert completion.finish_reason is FinishReason.STOP
    assert completion.usage.completion_tokens == 1


def test_an_ignored_end_of_sequence_ends_nothing(engine: Engine) -> None:
    [completion] = engine.run([ask(PROMPT, params=ALWAYS_EOS)])

    assert completion.token_ids == (EOS,) * 12
    assert completion.finish_reason is FinishReason.LENGTH
    assert completion.text == ""


@pytest.mark.parametrize("ignore_eos", [True, False])
def test_a_stop_token_of_the_callers_own_ends_the_output(ignore_eos: bool, engine: Engine) -> None:
    params = replace(ALWAYS_EOS, stop_token_ids=frozenset({EOS}))

    [completion] = engine.run([ask(PROMPT, params=params, ignore_eos=ignore_eos)])

    assert completion.finish_reason is FinishReason.STOP
    assert completion.token_ids == (EOS,)


@pytest.mark.parametrize("min_tokens", [1, 5, 11])
def test_no_stop_token_comes_before_min_tokens(min_tokens: int, engine: Engine) -> None:
    params = replace(ALWAYS_EOS, min_tokens=min_tokens)

    [completion] = engine.run([ask(PROMPT, params=params, ignore_eos=False)])

    assert EOS not in completion.token_ids[:-1]
    assert completion.token_ids[-1] == EOS
    assert len(completion.token_ids) == min_tokens + 1
    assert completion.finish_reason is FinishReason.STOP


def test_min_tokens_up_to_the_limit_end_by_the_limit(engine: Engine) -> None:
    params = replace(ALWAYS_EOS, min_tokens=12)

    [completion] = engine.run([ask(PROMPT, params=params, ignore_eos=False)])

    assert EOS not in completion.token_ids
    assert completion.finish_reason is FinishReason.LENGTH


def test_a_stop_token_that_is_also_the_last_allowed_one_is_a_stop(engine: Engine) -> None:
    params = replace(ALWAYS_EOS, max_tokens=1)

    [completion] = engine.run([ask(PROMPT, params=params, ignore_eos=False)])

    assert completion.finish_reason is FinishReason.STOP


def test_random_bytes_stream_as_they_decode(engine: Engine) -> None:
    params = SamplingParams(temperature=3.0, max_tokens=60)
    requests = [ask(PROMPT, params=replace(params, seed=seed)) for seed in range(12)]
    streamed: dict[str, str] = {}
    for name in [engine.add(request) for request in requests]:
        streamed[name] = ""
    while engine.has_work:
        for event in engine.step():
            streamed[event.req_id] += event.delta.text

    completions = engine.run(requests)

    assert list(streamed.values()) == [completion.text for completion in completions]
    for completion in completions:
        assert completion.text == engine.tokenizer.decode(completion.token_ids)
    assert_idle(engine.core)


def test_a_stop_string_frees_what_it_held_and_reports_the_tokens_it_took(engine: Engine) -> None:
    [full] = engine.run([ask(PROMPT, max_tokens=40)])
    stop = full.text[-4:-2]

    [cut] = engine.run([ask(PROMPT, max_tokens=40, stop=(stop,))])

    assert cut.text == full.text[: full.text.index(stop)]
    assert cut.token_ids == full.token_ids[: len(cut.token_ids)]
    assert cut.usage.completion_tokens == len(cut.token_ids)
    assert cut.usage.prompt_tokens == len(PROMPT)
    assert_idle(engine.core)
