"""Following texts through grammars token by token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tokenizers import Tokenizer

    from radixserve.grammar.compiler import GrammarCompiler
    from radixserve.grammar.spec import GrammarSpec
    from radixserve.types import Grammar, GrammarState


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


def allowed_ids(state: GrammarState) -> list[int]:
    bits = np.unpackbits(np.frombuffer(state.allowed(), dtype=np.uint8), bitorder="little")
    return np.flatnonzero(bits).tolist()


def takes(grammar: Grammar, token_ids: Iterable[int]) -> bool:
    """Whether the tokens are a whole output."""
    state = grammar.start()
    return state.accept(list(token_ids)) and state.may_end


def is_allowed_throughout(grammar: Grammar, token_ids: Iterable[int]) -> bool:
    """The same, where each token must also be among those that the mask allows."""
    state = grammar.start()
    for token in token_ids:
        if not state.forced() and token not in allowed_ids(state):
            return False
        if not state.accept([token]):
            return False
    return state.may_end


def accepts(
    compiler: GrammarCompiler, tokenizer: Tokenizer, spec: GrammarSpec, *texts: str
) -> list[bool]:
    """For each text, whether it is a whole output."""
    grammar = compiler.compile(spec)
    return [takes(grammar, ids_of(tokenizer, text)) for text in texts]
