"""Outputs of a grammar without a model: any allowed token, with some haste towards the end."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from random import Random

    from radixserve.grammar.compiler import GrammarCompiler
    from radixserve.grammar.spec import GrammarSpec
    from radixserve.types import Grammar

CLOSERS = ('"', "}", "]", '"}', '"]', "}}", "]}", "]]", '"}}', '"}]', "null", "{}", "[]", '""', "0")
LINKS = (",", ":", '":', '","', '":"', ', "', '": "', "1", "true", "a", '"a', "[", "{", '{"')


@dataclass(frozen=True, slots=True)
class Walk:
    """One output."""

    token_ids: list[int]
    is_finished: bool
    """Whether it may end where it does; False where `max_tokens` cut it."""
    failure: str | None = None
    mask_s: list[float] = field(default_factory=list)
    """Seconds for each mask made."""


class RandomWalker:
    """Walks through grammars.

    Args:
        vocab: Token text, as the tokenizer's file has it, to id.
        end_ids: Tokens that end an output.
    """

    def __init__(self, vocab: Mapping[str, int], end_ids: Collection[int]) -> None:
        self._ends = np.array(sorted(end_ids))
        self._closers = np.array([vocab[text] for text in CLOSERS if text in vocab])
        self._links = np.array([vocab[text] for text in LINKS if text in vocab])

    def walk(self, grammar: Grammar, rng: Random, *, max_tokens: int = 200) -> Walk:
        """Return an output of at most about `max_tokens` tokens, the end token left out."""
        state = grammar.start()
        ids: list[int] = []
        mask_s: list[float] = []
        while len(ids) < max_tokens:
            if state.is_complete or (state.may_end and rng.random() < (len(ids) + 10) / 40):
                return Walk(ids, True, mask_s=mask_s)
            started = time.perf_counter()
            words = state.allowed()
            mask_s.append(time.perf_counter() - started)
            if state.failure is not None:
                return Walk(ids, False, state.failure, mask_s)
            allowed = self._allowed(words)
            if not len(allowed):
                return Walk(ids, state.may_end, None if state.may_end else "no token fits", mask_s)
            taken = [self._pick(allowed, rng, haste=len(ids) / max_tokens)]
            if not state.accept(taken):
                return Walk(ids, False, state.failure or f"token {taken[0]} is not taken", mask_s)
            forced = state.forced()
            assert state.accept(forced), "a forced token is not accepted"
            ids += taken + forced
        return Walk(ids, state.may_end, mask_s=mask_s)

    def _allowed(self, words: memoryview) -> np.ndarray:
        bits = np.unpackbits(np.frombuffer(words, dtype=np.uint8), bitorder="little")
        bits[self._ends] = 0
        return np.flatnonzero(bits)

    def _pick(self, allowed: np.ndarray, rng: Random, *, haste: float) -> int:
        for likely, share in ((self._closers, 0.15 + 2 * haste), (self._links, 0.3 + 3 * haste)):
            found = np.intersect1d(allowed, likely) if rng.random() < share else ()
            if len(found):
                return int(rng.choice(found))
        return int(rng.choice(allowed))


def compiled(compiler: GrammarCompiler, spec: GrammarSpec) -> tuple[Grammar, float]:
    """Return a grammar and the seconds its compilation took."""
    started = time.perf_counter()
    grammar = compiler.compile(spec)
    return grammar, time.perf_counter() - started
