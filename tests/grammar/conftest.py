"""A compiler over the small tokenizer, and words to follow a text through a grammar."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from radixserve.grammar.compiler import GrammarCompiler
from tests.kit.tiny_tokenizer import train_tiny_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

VOCAB_SIZE = 512
"""More than the tokenizer has: the model's output head is padded."""

END = 2


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return train_tiny_tokenizer()


@pytest.fixture(scope="session")
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(tokenizer.to_str(), VOCAB_SIZE, [END, 0])
