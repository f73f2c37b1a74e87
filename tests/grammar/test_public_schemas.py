"""A sample of public schemas: most are accepted, and all that comes out is valid."""

from __future__ import annotations

import gzip
import json
import re
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.random_walk import RandomWalker
from benchmarks.structured import Bench, Tally, read_schemas
from radixserve.errors import UnsupportedGrammarError
from radixserve.grammar.spec import JsonSchemaSpec, RegexSpec
from tests.grammar.conftest import END
from tests.grammar.following import ids_of, takes
from tests.replay.public_data import public_file

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from radixserve.grammar.compiler import GrammarCompiler


@pytest.fixture
def walker(tokenizer: Tokenizer) -> RandomWalker:
    return RandomWalker(tokenizer.get_vocab(with_added_tokens=False), [END, 0])


@pytest.mark.parametrize(
    ("name", "least_share"),
    [("jsonschemabench.jsonl.gz", 0.85), ("json_schema_test_suite_2020_12.jsonl.gz", 0.5)],
)
def test_most_public_schemas_are_accepted_and_all_outputs_valid(
    compiler: GrammarCompiler,
    tokenizer: Tokenizer,
    walker: RandomWalker,
    name: str,
    least_share: float,
) -> None:
    schemas = read_schemas(public_file(f"constrained/{name}"), sample=60, seed=1)
    bench = Bench(compiler, walker, decode=tokenizer.decode, num_walks=1, max_tokens=300)

    tally = bench.run(schemas, Tally())

    assert tally.invalid == []
    assert tally.accepted_share >= least_share
    assert tally.num_finished > tally.num_accepted // 2


def test_the_suites_own_instances_are_judged_as_it_judges_them(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    """No invalid one is taken; valid ones may be written in another order or form than ours."""
    path = public_file("constrained/json_schema_test_suite_2020_12.jsonl.gz")
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        cases: list[dict[str, Any]] = [json.loads(line) for line in lines][::4]
    num_valid = num_taken = 0
    for case in cases:
        try:
            grammar = compiler.compile(JsonSchemaSpec.of(case["schema"]))
        except UnsupportedGrammarError:
            continue
        for test in case["tests"]:
            text = json.dumps(test["data"], ensure_ascii=False)
            is_taken = takes(grammar, ids_of(tokenizer, text))
            assert test["valid"] or not is_taken, (case["description"], text)
            num_valid += test["valid"]
            num_taken += is_taken
    assert num_taken > 0.9 * num_valid


def test_public_patterns_are_kept_to_or_refused(
    compiler: GrammarCompiler, tokenizer: Tokenizer, walker: RandomWalker
) -> None:
    path = public_file("constrained/regex_patterns.jsonl.gz")
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        patterns = [json.loads(line)["pattern"] for line in lines][::3]
    num_kept = 0
    for pattern in patterns:
        try:
            grammar = compiler.compile(RegexSpec(pattern))
        except UnsupportedGrammarError:
            continue
        num_kept += 1
        walk = walker.walk(grammar, Random(0), max_tokens=100)
        if walk.is_finished:
            assert re.search(pattern, tokenizer.decode(walk.token_ids)) is not None, pattern
    assert num_kept > 0.85 * len(patterns)
