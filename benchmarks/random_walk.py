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

NUM_TRIES = 20
"""Tokens tried at random before all that are allowed are listed, which takes longer."""


@dataclass(frozen=True, slots=True)
class Walk:
    """One output."""

    token_ids: list[int]
    is_finished: bool
    """Whether it may end where it does; False where `max_tokens` cut it."""
    failure: str | None = None
    mask_s: list[float] = field(default_factory=list)
    """Seconds of processor time for each mask."""


class RandomWalker:
    """Walks through grammars.

    Args:
        vocab: Token text, as the tokenizer's file has it, to id.
        end_ids: Tokens that end an output.
    """

    def __init__(self, vocab: Mapping[str, int], end_ids: Collection[int]) -> None:
        self._ends = frozenset(end_ids)
        self._closers = [vocab[text] for text in CLOSERS if text in vocab]
        self._links = [vocab[text] for text in LINKS if text in vocab]
        self._num_ids = max(vocab.values()) + 1

    def walk(self, grammar: Grammar, rng: Random, *, max_tokens: int = 200) -> Walk:
        """Return an output of at most about `max_tokens` tokens, the end token left out."""
        state = grammar.start()
        ids: list[int] = []
        mask_s: list[float] = []
        while len(ids) < max_tokens:
            if state.is_complete or (state.may_end and rng.random() < (len(ids) + 10) / 40):
                return Walk(ids, True, mask_s=mask_s)
            started = time.thread_time()
            words = state.allowed()
            mask_s.append(time.thread_time() - started)
            if state.failure is not None:
                return Walk(ids, False, state.failure, mask_s)
            token = self._pick(words, rng, haste=len(ids) / max_tokens)
            if token is None:
                return Walk(ids, state.may_end, None if state.may_end else "no token fits", mask_s)
            taken = [token]
            if not state.accept(taken):
                return Walk(ids, False, state.failure or f"token {taken[0]} is not taken", mask_s)
            forced = state.forced()
            if not state.accept(forced):
                return Walk(ids, False, state.failure or "a forced token is not taken", mask_s)
            ids += taken + forced
        return Walk(ids, state.may_end, mask_s=mask_s)

    def _pick(self, words: memoryview, rng: Random, *, haste: float) -> int | None:
        for likely, share in ((self._closers, 0.15 + 2 * haste), (self._links, 0.3 + 3 * haste)):
            if rng.random() < share:
                found = [token for token in likely if is_set(words, token)]
                if found:
                    return rng.choice(found)
        for _ in range(NUM_TRIES):
            token = rng.randrange(self._num_ids)
            if token not in self._ends and is_set(words, token):
                return token
        return self._pick_of_all(words, rng)

    def _pick_of_all(self, words: memoryview, rng: Random) -> int | None:
        bits = np.unpackbits(np.frombuffer(words, dtype=np.uint8), bitorder="little")
        allowed = [token for token in np.flatnonzero(bits).tolist() if token not in self._ends]
        return rng.choice(allowed) if allowed else None


def is_set(words: memoryview, token: int) -> bool:
    """Whether a token's bit is set."""
    return bool(words[token // 32] >> (token % 32) & 1)


def compiled(compiler: GrammarCompiler, spec: GrammarSpec) -> tuple[Grammar, float]:
    """Return a grammar and the seconds of processor time that its compilation took."""
    started = time.thread_time()
    grammar = compiler.compile(spec)
    return grammar, time.thread_time() - started
