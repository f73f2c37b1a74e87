"""Grammars in the engine: forced tokens, pressure, company and limits change nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from radixserve.engine.grammars import (
    ANY_JSON_OBJECT,
    ChoiceSpec,
    JsonSchemaSpec,
    RegexSpec,
)
from radixserve.engine.request import GenerateRequest
from radixserve.errors import GrammarLimitError, InvalidRequestError
from radixserve.types import FinishReason, SamplingParams
from tests.kit.engines import assert_idle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve.engine.grammars import GrammarSpec
    from radixserve.engine.sync_engine import Completion, Engine
    from tests.engine.conftest import MakeEngine

PERSON = {
    "type": "object",
    "properties": {
        "first_name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "role": {"enum": ["reader", "reader and writer", "administrator"]},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    },
    "required": ["first_name", "age", "role", "tags"],
    "additionalProperties": False,
}
SPECS: dict[str, GrammarSpec] = {
    "schema": JsonSchemaSpec.of(PERSON),
    "object": ANY_JSON_OBJECT,
    "regex": RegexSpec(r"(ab|c){2,5}-[0-9]{4}"),
    "choice": ChoiceSpec(("yes", "not", "not sure")),
}


@pytest.fixture(scope="module")
def engine(make_engine: MakeEngine) -> Engine:
    return make_engine()


def make_requests(engine: Engine, count: int, **params: Any) -> list[GenerateRequest]:
    """Requests over the specs in turn, with seeds of their own; every third is free."""
    random, specs = Random(11), list(SPECS.values())
    requests = []
    for index in range(count):
        grammar = engine.compile_grammar(specs[index % len(specs)]) if index % 3 else None
        fields: dict[str, Any] = {
            "max_tokens": 100,
            "temperature": 0.9,
            "seed": index,
            "grammar": grammar,
        }
        prompt = [random.randrange(3, 320) for _ in range(random.randint(1, 12))]
        requests.append(
            GenerateRequest(prompt_ids=prompt, params=SamplingParams(**fields | params))
        )
    return requests


def alone(engine: Engine, requests: Sequence[GenerateRequest]) -> list[tuple[int, ...]]:
    return [engine.run([request])[0].token_ids for request in requests]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", SPECS)
def test_forced_tokens_taken_at_once_are_those_that_would_be_sampled(
    engine: Engine, name: str, temperature: float
) -> None:
    """A request for log-probabilities samples each token; the tokens are the same ones."""
    grammar = engine.compile_grammar(SPECS[name])
    forced = 0
    for seed in range(6):
        params = SamplingParams(grammar=grammar, temperature=temperature, seed=seed, max_tokens=120)
        prompt = [5 + seed, 6, 7]
        [fast] = engine.run([GenerateRequest(prompt_ids=prompt, params=params)])
        [slow] = engine.run(
            [GenerateRequest(prompt_ids=prompt, params=replace(params, logprobs=0))]
        )
        assert fast.token_ids == slow.token_ids
        assert (fast.text, fast.finish_reason) == (slow.text, slow.finish_reason)
        assert slow.usage.forced_tokens == 0
        forced += fast.usage.forced_tokens
    assert forced > 0 or name == "object"  # of which little is fixed


@pytest.mark.parametrize("mode", ["recompute", "swap"])
@pytest.mark.usefixtures("eager_admission")
def test_outputs_under_pressure_are_those_of_undisturbed_runs(
    make_engine: MakeEngine, engine: Engine, mode: str
) -> None:
    pressed = make_engine(num_blocks=60, block_size=4, preemption_mode=mode, max_num_seqs=12)
    expected = alone(engine, make_requests(engine, 12))

    found = pressed.run(make_requests(pressed, 12))

    assert [completion.token_ids for completion in found] == expected
    assert pressed.stats().preemptions > 0
    assert_idle(pressed.core)


def test_company_changes_nothing(engine: Engine) -> None:
    expected = alone(engine, make_requests(engine, 16))

    assert [each.token_ids for each in engine.run(make_requests(engine, 16))] == expected
    assert_idle(engine.core)


def test_the_cache_changes_nothing(make_engine: MakeEngine, engine: Engine) -> None:
    uncached = make_engine(prefix_cache=False)
    prompt = list(range(20, 60))
    for seed in range(4):
        params = SamplingParams(temperature=1.0, seed=seed, max_tokens=60)
        texts = []
        for each in (uncached, engine, engine):
            grammar = each.compile_grammar(SPECS["schema"])
            request = GenerateRequest(prompt_ids=prompt, params=replace(params, grammar=grammar))
            texts.append(each.run([request])[0].text)
        assert len(set(texts)) == 1


def test_whole_outputs_are_valid_and_cut_ones_say_length(engine: Engine) -> None:
    grammar = engine.compile_grammar(SPECS["schema"])
    requests = [
        GenerateRequest(
            prompt_ids=[seed + 3],
            params=SamplingParams(grammar=grammar, seed=seed, max_tokens=20 + 4 * seed),
        )
        for seed in range(20)
    ]
    reasons = set()
    for request, completion in zip(requests, engine.run(requests), strict=True):
        reasons.add(completion.finish_reason)
        if completion.finish_reason is FinishReason.STOP:
            jsonschema.validate(json.loads(completion.text), PERSON)
        else:
            assert len(completion.token_ids) == request.params.max_tokens
    assert reasons == {FinishReason.STOP, FinishReason.LENGTH}


def run_one(engine: Engine, spec: Any, **params: Any) -> Completion:
    fields: dict[str, Any] = {
        "grammar": engine.compile_grammar(spec),
        "temperature": 0.0,
        "max_tokens": 60,
    }
    [found] = engine.run(
        [GenerateRequest(prompt_ids=[5, 6, 7], params=SamplingParams(**fields | params))]
    )
    return found


def test_a_grammar_that_is_complete_wins_over_min_tokens(engine: Engine) -> None:
    found = run_one(engine, RegexSpec("[0-9]{3}"), min_tokens=30)

    assert found.finish_reason is FinishReason.STOP
    assert len(found.text) == 3


def test_a_grammar_that_may_go_on_does_so_until_min_tokens(engine: Engine) -> None:
    found = run_one(engine, RegexSpec("(?:[0-9] )*"), min_tokens=30)

    assert len(found.token_ids) >= 30


@pytest.mark.parametrize(
    "params",
    [
        {"allowed_token_ids": frozenset({9})},
        {"logit_bias": ((19, -100.0), (20, -100.0))},
        {"top_k": 1, "temperature": 1.0, "seed": 1},
        {"min_p": 1.0, "temperature": 1.0, "seed": 1},
        {"top_p": 1e-6, "temperature": 2.0, "seed": 1},
        {"repetition_penalty": 50.0, "frequency_penalty": 2.0},
        {"bad_words": tuple((token,) for token in range(18, 30))},
    ],
    ids=str,
)
def test_no_other_parameter_breaks_a_grammar(engine: Engine, params: dict[str, Any]) -> None:
    found = run_one(engine, RegexSpec("[0-9]{12}"), **params)

    assert found.text.isdigit()
    assert len(found.text) == 12


def test_an_empty_output_is_an_output(engine: Engine) -> None:
    found = run_one(engine, RegexSpec(""))

    assert (found.text, found.finish_reason) == ("", FinishReason.STOP)


def test_a_limit_met_ends_its_own_request_only(engine: Engine) -> None:
    grammar = engine.compile_grammar(RegexSpec("(a{1,1000}){1,1000}"))
    params = SamplingParams(grammar=grammar, temperature=0.0, max_tokens=200, min_tokens=200)
    free = SamplingParams(temperature=0.0, max_tokens=60)
    failing = engine.add(GenerateRequest(prompt_ids=[5], params=params))
    other = engine.add(GenerateRequest(prompt_ids=[6], params=free, ignore_eos=True))
    ends = {}
    while engine.has_work:
        for event in engine.step():
            if event.delta.finish_reason is not None:
                ends[event.req_id] = event

    assert ends[other].delta.finish_reason is FinishReason.LENGTH
    assert ends[failing].delta.finish_reason is FinishReason.ERROR
    failure = ends[failing].failure()
    assert isinstance(failure, GrammarLimitError)
    assert failure.status_hint == 400
    assert_idle(engine.core)


def test_a_grammar_whose_end_is_ignored_is_refused(engine: Engine) -> None:
    params = SamplingParams(grammar=engine.compile_grammar(SPECS["choice"]))
    request = GenerateRequest(prompt_ids=[5], params=params, ignore_eos=True)

    with pytest.raises(InvalidRequestError, match="ignore_eos"):
        engine.run([request])
