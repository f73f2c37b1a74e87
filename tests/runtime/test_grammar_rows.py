from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from radixserve.core.plan import SamplingState, ScheduledReq, StepPlan
from radixserve.grammar.compiler import GrammarCompiler, GrammarLimits
from radixserve.grammar.spec import ChoiceSpec, GrammarTextSpec, RegexSpec
from radixserve.runtime import grammar_rows
from radixserve.runtime.grammar_rows import GrammarRows
from radixserve.types import ReqId, RequestFault, SamplingParams, pack_ids
from tests.kit.tiny_tokenizer import train_tiny_tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenizers import Tokenizer

    from radixserve.types import Grammar

VOCAB, END, OTHER_END = 323, 2, 0


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tiny_tokenizer()


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(tokenizer.to_str(), VOCAB, [END, OTHER_END])


def make_row(
    grammar: Grammar | None, output: Sequence[int] = (), *, name: str = "a", **params: Any
) -> ScheduledReq:
    fields: dict[str, Any] = {
        "max_tokens": 100,
        "stop_token_ids": frozenset({END, OTHER_END}),
    } | params
    state = SamplingState(
        SamplingParams(grammar=grammar, **fields), len(output), b"", pack_ids(output)
    )
    return ScheduledReq(ReqId(name), pack_ids([5]), 0, b"", state)


def make_plan(*rows: ScheduledReq, step: int = 1) -> StepPlan:
    return StepPlan(step, rows)


def masks_of(rows: GrammarRows, plan: StepPlan) -> dict[int, Any]:
    pending = rows.begin(plan)
    return {} if pending is None else pending.result()


def ids(mask: np.ndarray) -> set[int]:
    return set(np.flatnonzero(mask).tolist())


def token(tokenizer: Tokenizer, text: str) -> int:
    [one] = tokenizer.encode(text).ids
    return int(one)


def test_rows_without_a_grammar_cost_nothing(compiler: GrammarCompiler) -> None:
    rows = GrammarRows(VOCAB)
    prefill = ScheduledReq(ReqId("b"), pack_ids([5, 6]), 0, b"", None)

    assert rows.begin(make_plan(make_row(None), prefill)) is None
    assert len(rows) == 0


def test_only_rows_with_a_grammar_are_masked(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    grammar = compiler.compile(ChoiceSpec(("a", "b")))
    masks = masks_of(GrammarRows(VOCAB), make_plan(make_row(None), make_row(grammar, name="b")))

    assert set(masks) == {1}
    assert ids(masks[1]) == {token(tokenizer, "a"), token(tokenizer, "b")}
    assert len(masks[1]) == VOCAB


def test_what_is_forced_follows_at_once_with_the_end(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    grammar = compiler.compile(RegexSpec("[ab]cdef"))
    rows, plan = GrammarRows(VOCAB), make_plan(make_row(grammar))
    masks_of(rows, plan)

    forced = rows.advance(plan, [token(tokenizer, "a")])

    assert tokenizer.decode(list(forced[0][:-1])) == "cdef"
    assert forced[0][-1] == END


@pytest.mark.parametrize(
    ("params", "expected_len"),
    [({"max_tokens": 3}, 2), ({"max_tokens": 1}, 0), ({"logprobs": 0}, 0)],
)
def test_no_more_is_forced_than_the_request_can_take(
    compiler: GrammarCompiler, tokenizer: Tokenizer, params: dict[str, Any], expected_len: int
) -> None:
    grammar = compiler.compile(RegexSpec("[ab]cdef"))
    rows, plan = GrammarRows(VOCAB), make_plan(make_row(grammar, **params))
    masks_of(rows, plan)

    assert len(rows.advance(plan, [token(tokenizer, "a")]).get(0, ())) == expected_len


def test_forced_tokens_are_the_only_ones_allowed_where_they_are_not_taken_at_once(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    grammar = compiler.compile(RegexSpec("[ab]cdef"))
    fast, slow = GrammarRows(VOCAB), GrammarRows(VOCAB)
    plan = make_plan(make_row(grammar))
    masks_of(fast, plan)
    expected = [token(tokenizer, "a"), *fast.advance(plan, [token(tokenizer, "a")])[0]]

    output = [token(tokenizer, "a")]
    while output[-1] != END:
        [mask] = masks_of(slow, make_plan(make_row(grammar, output, logprobs=0))).values()
        [only] = ids(mask)
        output.append(only)

    assert output == expected


def test_a_state_is_made_anew_from_the_row_when_it_is_missing_or_another(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    grammar = compiler.compile(ChoiceSpec(("no", "not sure", "yes")))
    no, yes = tokenizer.encode("no").ids, tokenizer.encode("yes").ids
    rows = GrammarRows(VOCAB)

    [after_no] = masks_of(rows, make_plan(make_row(grammar, no))).values()
    [after_nothing] = masks_of(rows, make_plan(make_row(grammar))).values()
    [after_yes] = masks_of(rows, make_plan(make_row(grammar, yes))).values()
    [again] = masks_of(rows, make_plan(make_row(grammar, no))).values()
    other = compiler.compile(ChoiceSpec(("nose",)))
    [of_another] = masks_of(rows, make_plan(make_row(other, no))).values()

    assert ids(after_no) == ids(again) == {END, OTHER_END, token(tokenizer, "t")}
    assert ids(after_nothing) == {token(tokenizer, "n"), token(tokenizer, "y")}
    assert ids(after_yes) == {END}
    assert END not in ids(of_another)
    assert len(rows) == 1


def test_states_of_those_that_are_gone_are_dropped(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    grammar = compiler.compile(ChoiceSpec(("a", "b")))
    monkeypatch.setattr(grammar_rows, "MAX_STATES", 8)
    rows = GrammarRows(VOCAB)
    for step in range(20):
        masks_of(rows, make_plan(make_row(grammar, name=f"r{step}"), step=step))
    assert len(rows) == 8
    masks_of(rows, make_plan(make_row(grammar, name="late"), step=1000))
    assert len(rows) == 1


def test_a_stop_token_that_is_text_ends_the_output_only_where_nothing_else_may_come(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    a, b = token(tokenizer, "a"), token(tokenizer, "b")
    stops = frozenset({END, b})

    def mask(pattern: str, output: Sequence[int] = ()) -> set[int]:
        grammar = compiler.compile(RegexSpec(pattern))
        plan = make_plan(make_row(grammar, output, stop_token_ids=stops))
        return ids(masks_of(GrammarRows(VOCAB), plan)[0])

    assert mask("[ab]c") == {a}
    assert mask("bc") == {b}
    assert mask("a?[cd]?") >= {a, b, END}


def test_a_limit_met_is_the_requests_own_fault(tokenizer: Tokenizer) -> None:
    compiler = GrammarCompiler(tokenizer.to_str(), VOCAB, [END], GrammarLimits(step_items=500))
    grammar = compiler.compile(GrammarTextSpec('start: a a a\na: a a | "x" | '))
    rows, output = GrammarRows(VOCAB), [token(tokenizer, "x")] * 300

    [mask] = masks_of(rows, make_plan(make_row(grammar, output))).values()

    assert isinstance(mask, RequestFault)
    assert "items" in mask


def test_an_output_that_does_not_follow_its_grammar_is_our_fault(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    grammar = compiler.compile(ChoiceSpec(("a", "b")))
    plan = make_plan(make_row(grammar, tokenizer.encode("zz").ids))
    [mask] = masks_of(GrammarRows(VOCAB), plan).values()

    assert isinstance(mask, str)
    assert not isinstance(mask, RequestFault)
