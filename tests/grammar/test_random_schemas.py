"""What is valid is accepted token by token, and what is not is not, under several tokenizers."""

from __future__ import annotations

import json
from random import Random

import jsonschema
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from benchmarks.random_walk import RandomWalker
from benchmarks.structured import fault_of
from radixserve.grammar.compiler import GrammarCompiler
from radixserve.grammar.spec import JsonSchemaSpec
from tests.grammar.conftest import END
from tests.grammar.following import ids_of, is_allowed_throughout, takes
from tests.grammar.small_schemas import make_schema, spoiled
from tests.kit.tiny_tokenizer import train_tiny_tokenizer

NUM_SCHEMAS = 200


def _bytes_only() -> Tokenizer:
    """A tokenizer without merges: every byte is a token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {char: place for place, char in enumerate(["<e>", "<b>", "<|end|>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.add_special_tokens(["<e>", "<b>", "<|end|>"])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


TOKENIZERS = {
    "merges": (train_tiny_tokenizer, 512),
    "bytes": (_bytes_only, 259),
    "padded": (train_tiny_tokenizer, 4096),
}


@pytest.fixture(scope="module", params=TOKENIZERS)
def served(request: pytest.FixtureRequest) -> tuple[Tokenizer, GrammarCompiler]:
    make, vocab_size = TOKENIZERS[request.param]
    tokenizer = make()
    return tokenizer, GrammarCompiler(tokenizer.to_str(), vocab_size, [END])


def test_valid_values_are_accepted_and_invalid_ones_are_not(
    served: tuple[Tokenizer, GrammarCompiler],
) -> None:
    tokenizer, compiler = served
    rng = Random(3)
    num_wrong = 0
    for number in range(NUM_SCHEMAS):
        schema, values = make_schema(rng)
        grammar = compiler.compile(JsonSchemaSpec.of(schema))
        for value in values:
            jsonschema.validate(value, schema)
            indent = rng.choice([None, 2])
            text = json.dumps(value, ensure_ascii=False, indent=indent)
            check = is_allowed_throughout if number % 10 == 0 else takes
            assert check(grammar, ids_of(tokenizer, text)), (schema, text)
            wrong = spoiled(rng, value)
            if not jsonschema.Draft202012Validator(schema).is_valid(wrong):
                num_wrong += 1
                text = json.dumps(wrong, ensure_ascii=False)
                assert not takes(grammar, ids_of(tokenizer, text)), (schema, text)
    assert num_wrong > NUM_SCHEMAS


def test_outputs_at_random_are_valid() -> None:
    tokenizer = train_tiny_tokenizer()
    compiler = GrammarCompiler(tokenizer.to_str(), 512, [END])
    walker = RandomWalker(tokenizer.get_vocab(with_added_tokens=False), [END])
    rng = Random(4)
    num_finished = 0
    for _ in range(NUM_SCHEMAS):
        schema, _ = make_schema(rng)
        walk = walker.walk(compiler.compile(JsonSchemaSpec.of(schema)), rng)
        assert walk.failure is None
        if walk.is_finished:
            num_finished += 1
            text = tokenizer.decode(walk.token_ids, skip_special_tokens=False)
            assert fault_of(schema, text) is None, (schema, text)
    assert num_finished > NUM_SCHEMAS * 0.9
