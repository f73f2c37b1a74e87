from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from radixserve.errors import UnsupportedGrammarError
from radixserve.grammar.compiler import GrammarCache, GrammarCompiler, GrammarLimits
from radixserve.grammar.spec import (
    ANY_JSON_OBJECT,
    Branch,
    ChoiceSpec,
    GrammarTextSpec,
    JsonSchemaSpec,
    RegexSpec,
    TaggedTextSpec,
    UnionSpec,
)
from tests.grammar.conftest import END, VOCAB_SIZE
from tests.grammar.following import accepts, allowed_ids, ids_of, is_allowed_throughout, takes

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from radixserve.grammar.spec import GrammarSpec


# -- choices ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [("yes", "no", "not sure"), ("not sure", "not", "no")])
def test_an_option_may_be_the_beginning_of_another(
    compiler: GrammarCompiler, tokenizer: Tokenizer, options: tuple[str, ...]
) -> None:
    grammar = compiler.compile(ChoiceSpec(options))

    assert all(is_allowed_throughout(grammar, ids_of(tokenizer, option)) for option in options)
    assert not takes(grammar, ids_of(tokenizer, "nope"))
    after_no = grammar.start()
    assert after_no.accept(ids_of(tokenizer, "no"))
    assert (after_no.may_end, after_no.is_complete) == (True, False)
    assert {END, *ids_of(tokenizer, "t")} <= set(allowed_ids(after_no))


def test_options_with_marks_of_regular_expressions_are_plain_texts(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    options = ("a.b", "(c)|d", "/e/", "[f]*", '"g"\n', "h\\", "日本", "🦜", "-1 & 2 ~ 3 # 4")

    found = accepts(compiler, tokenizer, ChoiceSpec(options), *options, "axb", "c", "d", "e")

    assert found == [True] * len(options) + [False] * 4


# -- regular expressions and grammars --------------------------------------------------------------


def test_a_regex_is_matched_from_end_to_end(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    spec = RegexSpec(r"\d{3}-\d{4}")
    assert accepts(compiler, tokenizer, spec, "555-0100", "x555-0100", "555-01001", "555-010") == [
        True,
        False,
        False,
        False,
    ]
    assert accepts(compiler, tokenizer, RegexSpec("^a/b$"), "a/b", "a/bc") == [True, False]


@pytest.mark.parametrize(
    "text",
    ['root ::= "a" rest\nrest ::= [0-9]+ | "(" root ")"', 'start: "a" R\nR: /[0-9]+/ | "(a1)"'],
)
def test_both_notations_of_grammars_are_read(
    compiler: GrammarCompiler, tokenizer: Tokenizer, text: str
) -> None:
    found = accepts(compiler, tokenizer, GrammarTextSpec(text), "a12", "a(a1)", "b", "a")

    assert found == [True, True, False, False]


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (GrammarTextSpec('root ::= "a" missing'), "missing"),
        (GrammarTextSpec("root ::= ("), "Expected"),
        (GrammarTextSpec('root ::= "\\'), "cannot be read"),
        (GrammarTextSpec("root ::= " + "(" * 5000 + '"a"' + ")" * 5000), "nested too deeply"),
        (GrammarTextSpec("start: other"), "other"),
        (RegexSpec("(unclosed"), "unclosed"),
        (RegexSpec("a{2,1}"), "repetition"),
        (RegexSpec(r"(a)\1"), "\\\\1"),
        (RegexSpec("(?=a)b"), r"\(\?="),
        pytest.param(ChoiceSpec(("a\ud800",)), "Unicode", id="half a character"),
    ],
)
def test_what_is_wrong_is_refused_with_the_part_named(
    compiler: GrammarCompiler, spec: GrammarSpec, why: str
) -> None:
    with pytest.raises(UnsupportedGrammarError, match=why):
        compiler.compile(spec)


# -- unions and tagged text ------------------------------------------------------------------------

CALLS = (
    Branch('<call>{"name": "f", "arguments": ', '{"type":"object","required":["a"]}', "}</call>"),
    Branch('<call>{"name": "g", "arguments": ', '{"type":"object"}', "}</call>"),
)
F = '<call>{"name": "f", "arguments": {"a": 1}}</call>'
G = '<call>{"name": "g", "arguments": {}}</call>'


def test_a_union_takes_one_branch_or_several(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    one = UnionSpec(branches=CALLS)
    some = UnionSpec(branches=CALLS, opener="[", separator=", ", closer="]", max_branches=3)

    assert accepts(compiler, tokenizer, one, F, G, F + G, F.replace('"a"', '"b"'), "") == [
        True,
        True,
        False,
        False,
        False,
    ]
    lists = [f"[{', '.join(calls)}]" for calls in ([F], [F, G], [G, F, F], [F, F, F, F], [])]
    assert accepts(compiler, tokenizer, some, *lists) == [True, True, True, False, False]


def test_special_tokens_in_fixed_texts_are_those_tokens(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    spec = UnionSpec(branches=(Branch("<|im_start|>", '{"type":"integer"}', "<|im_start|>!"),))
    digits = ids_of(tokenizer, "12")
    special = [1, *digits, 1, *ids_of(tokenizer, "!")]
    spelled = [token for char in "<|im_start|>" for token in ids_of(tokenizer, char)]

    grammar = compiler.compile(spec)

    assert takes(grammar, special)
    assert not grammar.start().accept(spelled)


def test_free_text_is_free_until_a_trigger(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    spec = TaggedTextSpec(branches=CALLS, triggers=("<call>",))

    found = accepts(
        compiler, tokenizer, spec, "", "Hello < you", f"Hm: {F}", f"{G} and {F}.", "a <call>b"
    )

    assert found == [True, True, True, True, False]


def test_a_trigger_may_be_a_special_token(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    spec = TaggedTextSpec(
        branches=(Branch("<|im_start|>f", '{"type":"integer"}', "!"),), triggers=("<|im_start|>",)
    )
    grammar = compiler.compile(spec)

    assert takes(grammar, [*ids_of(tokenizer, "Hm: "), 1, *ids_of(tokenizer, "f7!")])
    assert not takes(grammar, [*ids_of(tokenizer, "Hm: "), 1, *ids_of(tokenizer, "g7!")])


# -- vocabularies ----------------------------------------------------------------------------------


def test_masks_are_as_wide_as_the_logits_and_allow_no_padding(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    state = compiler.compile(RegexSpec("(?:.|\n)*")).start()

    assert len(state.allowed()) == VOCAB_SIZE // 32
    assert max(allowed_ids(state)) < tokenizer.get_vocab_size()
    assert {1}.isdisjoint(allowed_ids(state))


@pytest.mark.parametrize("vocab_size", [384, 385, 1000, 100])
def test_a_vocabulary_of_any_width_will_do(tokenizer: Tokenizer, vocab_size: int) -> None:
    compiler = GrammarCompiler(tokenizer.to_str(), vocab_size, [END])

    assert accepts(compiler, tokenizer, ChoiceSpec(("a", "b")), "a", "c") == [True, False]


def test_end_tokens_are_ends_even_if_the_tokenizer_forgot_to_call_them_special(
    tokenizer: Tokenizer,
) -> None:
    facts = json.loads(tokenizer.to_str())
    for token in facts["added_tokens"]:
        token["special"] = False
    state = (
        GrammarCompiler(json.dumps(facts), 512, [2, 0, 9999]).compile(RegexSpec("[^x]*")).start()
    )

    assert state.accept(ids_of(tokenizer, "a"))
    assert {0, 2} <= set(allowed_ids(state))
    assert not state.is_complete
    assert state.accept([2])
    assert state.is_complete


def test_a_tokenizer_that_the_library_cannot_read_is_the_callers_400() -> None:
    with pytest.raises(UnsupportedGrammarError, match="tokenizer"):
        GrammarCompiler('{"model": {"type": "Strange", "vocab": {}}}', 10, [])


def test_a_character_may_be_split_over_tokens(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    grammar = compiler.compile(
        JsonSchemaSpec.of({"type": "string", "minLength": 2, "maxLength": 2})
    )
    parrots = ids_of(tokenizer, '"🦜é"')
    state = grammar.start()

    assert len(parrots) >= 7  # several tokens for each character
    assert is_allowed_throughout(grammar, parrots)
    assert state.accept(parrots[:3])
    assert not state.may_end
    assert not state.accept(ids_of(tokenizer, '"'))  # in the middle of a character


# -- limits ----------------------------------------------------------------------------------------


def test_what_is_too_long_is_refused_before_it_is_read(tokenizer: Tokenizer) -> None:
    compiler = GrammarCompiler(tokenizer.to_str(), 512, [END], GrammarLimits(max_spec_bytes=1000))
    for spec in (
        RegexSpec("a" * 1001),
        ChoiceSpec(("a" * 500, "b" * 500)),
        JsonSchemaSpec('"' + "a" * 1000),
        UnionSpec(branches=(Branch("a" * 600, "{}", "b" * 600),)),
    ):
        with pytest.raises(UnsupportedGrammarError, match="at most 1000"):
            compiler.compile(spec)


def doubling(depth: int) -> dict[str, Any]:
    """A schema whose expansion has 2**depth parts."""
    defs: dict[str, Any] = {
        f"a{i}": {"allOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(depth)
    }
    defs[f"a{depth}"] = {"type": "object", "properties": {"x": {"type": "string"}}}
    return {"$defs": defs, "$ref": "#/$defs/a0"}


def many_any_of(count: int) -> dict[str, Any]:
    """A schema whose branches multiply to 3**count."""
    groups = [
        [{"properties": {f"p{i}{j}": {"type": "string"}}} for j in range(3)] for i in range(count)
    ]
    return {"allOf": [{"anyOf": group} for group in groups]}


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(JsonSchemaSpec.of(many_any_of(9)), id="branches that multiply"),
        pytest.param(
            JsonSchemaSpec.of({"properties": {f"k{i}": {"maxLength": 9} for i in range(2500)}}),
            id="thousands of optional keys",
        ),
        pytest.param(JsonSchemaSpec('{"items":' * 200 + "{}" + "}" * 200), id="nested"),
        pytest.param(JsonSchemaSpec('{"items":' * 5000 + "{}" + "}" * 5000), id="nested deeper"),
        pytest.param(RegexSpec("(" * 3000 + "a" + ")?" * 3000), id="nested groups"),
        pytest.param(
            RegexSpec("((((a{1,99}){1,99}){1,99}){1,99}){1,99}|b"), id="repeats of repeats"
        ),
    ],
)
def test_what_costs_too_much_is_refused_or_bounded(
    compiler: GrammarCompiler, spec: GrammarSpec
) -> None:
    try:
        state = compiler.compile(spec).start()
    except UnsupportedGrammarError:
        return
    for _ in range(200):
        found = allowed_ids(state)
        if state.failure is not None or not state.accept(found[-1:]):
            break
        assert found


def test_a_schema_that_is_large_only_when_written_out_is_served(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    spec = JsonSchemaSpec.of(doubling(18))

    assert accepts(compiler, tokenizer, spec, '{"x": "a"}', '{"x": 1}') == [True, False]


def test_a_limit_met_on_the_way_is_told_and_stays(tokenizer: Tokenizer) -> None:
    compiler = GrammarCompiler(tokenizer.to_str(), 512, [END], GrammarLimits(step_items=500))
    state = compiler.compile(GrammarTextSpec('start: a a a\na: a a | "x" | ')).start()
    x = ids_of(tokenizer, "x")
    for _ in range(300):
        state.allowed()
        if state.failure is not None or not state.accept(x):
            break

    assert state.failure is not None
    assert "items" in state.failure
    assert not state.accept(x)
    assert (state.forced(), state.is_complete) == ([], False)


# -- cache -----------------------------------------------------------------------------------------


def test_an_equal_spec_is_compiled_once(compiler: GrammarCompiler) -> None:
    one = compiler.compile(JsonSchemaSpec.of({"type": "object", "title": "once"}))

    assert compiler.compile(JsonSchemaSpec.of({"type": "object", "title": "once"})) is one
    assert compiler.find(JsonSchemaSpec.of({"type": "object", "title": "never"})) is None


def test_the_cache_is_bounded_in_number_and_in_bytes(compiler: GrammarCompiler) -> None:
    grammar = compiler.compile(ANY_JSON_OBJECT)
    cache = GrammarCache(max_grammars=3, max_bytes=100)
    specs = [RegexSpec(letter) for letter in "abcde"]
    for spec in specs[:3]:
        cache.put(spec, grammar, 10)
    assert cache.get(specs[0]) is grammar
    cache.put(specs[3], grammar, 10)

    assert [cache.get(spec) is grammar for spec in specs] == [True, False, True, True, False]
    cache.put(specs[4], grammar, 85)
    assert len(cache) == 2
    cache.put(specs[1], grammar, 1000)
    assert len(cache) == 0
