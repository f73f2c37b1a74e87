"""From a spec to a grammar over one model's vocabulary: checked, bounded, cached."""

from __future__ import annotations

import contextlib
import json
import threading
from collections import OrderedDict
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from radixserve.errors import UnsupportedGrammarError
from radixserve.grammar.lark import library_grammar
from radixserve.grammar.state import CompiledGrammar, first_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from radixserve.grammar.spec import GrammarSpec


MAX_GROWTH = 4
"""By how much a schema may be longer in other words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarLimits:
    """What one grammar may cost. The defaults bound a compilation to a few seconds at worst, a
    mask to some tens of milliseconds, and a state to some tens of megabytes."""

    max_spec_bytes: int = 131_072
    max_options: int = 10_000
    """Texts to choose from, or tools."""
    grammar_size: int = 100_000
    """Symbols in the grammar's rules."""
    initial_lexer_fuel: int = 300_000
    step_lexer_fuel: int = 200_000
    step_items: int = 10_000
    """Parser items made for one mask."""
    row_items: int = 2_000
    lexer_states: int = 20_000
    """Of 1 to 2 kilobytes each."""
    max_cached: int = 256
    max_cached_bytes: int = 64 * 2**20

    def library_limits(self) -> LLParserLimits:
        """Return the same for the library."""
        return LLParserLimits(
            max_grammar_size=self.grammar_size,
            initial_lexer_fuel=self.initial_lexer_fuel,
            step_lexer_fuel=self.step_lexer_fuel,
            step_max_items=self.step_items,
            max_items_in_row=self.row_items,
            max_lexer_states=self.lexer_states,
            verbose_errors=False,
        )


class GrammarCompiler:
    """Compiles specs for one tokenizer. For any number of threads.

    Args:
        tokenizer_json: The tokenizer, as its own library writes it.
        vocab_size: Width of the logits that the masks are for, at least the tokenizer's ids.
        eos_token_ids: Ids that end an output, the tokenizer's own first.
        limits: What one grammar may cost.
    Raises:
        UnsupportedGrammarError: the library cannot read this kind of tokenizer.
    """

    def __init__(
        self,
        tokenizer_json: str,
        vocab_size: int,
        eos_token_ids: Sequence[int],
        limits: GrammarLimits | None = None,
    ) -> None:
        self._limits = limits or GrammarLimits()
        self._library_limits = self._limits.library_limits()
        facts = json.loads(tokenizer_json)
        self._special_tokens = _special_tokens(facts)
        num_ids = _num_ids(facts)
        self._vocab_size = max(vocab_size, num_ids)
        ends = [token for token in eos_token_ids if token < num_ids]
        self._end_token_id = ends[0] if ends else None
        try:
            self._tokenizer = LLTokenizer(
                tokenizer_json, n_vocab=self._vocab_size, eos_token=ends or None
            )
        except ValueError as error:
            raise UnsupportedGrammarError(
                f"structured output does not work with this model's tokenizer: {error}"
            ) from error
        self._cache = GrammarCache(self._limits.max_cached, self._limits.max_cached_bytes)

    def find(self, spec: GrammarSpec) -> CompiledGrammar | None:
        """Return the grammar of a spec if it is cached."""
        return self._cache.get(spec)

    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        """Return the grammar of a spec. Takes milliseconds, seconds at worst: not for an event
        loop.

        Raises:
            UnsupportedGrammarError: it is wrong, too large, or a part of it cannot be enforced.
        """
        found = self.find(spec)
        if found is None:
            size = self._checked_size(spec)
            found = CompiledGrammar(self._prototype(spec), self._vocab_size, self._end_token_id)
            self._cache.put(spec, found, size)
        return found

    def _checked_size(self, spec: GrammarSpec) -> int:
        try:
            size = _size_of(spec)
        except UnicodeEncodeError:
            raise UnsupportedGrammarError("it is not valid Unicode") from None
        if size > self._limits.max_spec_bytes:
            raise UnsupportedGrammarError(
                f"the grammar has {size} bytes; at most {self._limits.max_spec_bytes} are allowed"
            )
        return size

    def _prototype(self, spec: GrammarSpec) -> LLMatcher:
        """Follow the caller's own words; where the library lacks one, others for the same."""
        grammar = library_grammar(spec, self._special_tokens)
        try:
            return self._matcher(grammar)
        except UnsupportedGrammarError:
            other = library_grammar(spec, self._special_tokens, rewrites=True)
            if other == grammar or len(other) > MAX_GROWTH * self._limits.max_spec_bytes:
                raise
            with contextlib.suppress(UnsupportedGrammarError):
                return self._matcher(other)
            raise

    def _matcher(self, grammar: str) -> LLMatcher:
        matcher = LLMatcher(self._tokenizer, grammar, limits=self._library_limits, log_level=0)
        if not matcher.is_error():
            # The first mask is the slow one: it is made here, and its automata are copied.
            matcher.compute_ff_tokens()
            mask = matcher.compute_bitmask()
            if not matcher.is_error() and not any(mask):
                raise UnsupportedGrammarError("no output can satisfy it")
        if matcher.is_error():
            why = first_line(matcher.get_error()).split(". Enable '")[0]  # options are ours to set
            raise UnsupportedGrammarError(f"it cannot be enforced: {why}")
        return matcher


class GrammarCache:
    """The grammars used last, bounded in number and in size of what they were made from.

    Args:
        max_grammars: Most of them.
        max_bytes: Of their specs together.
    """

    def __init__(self, max_grammars: int, max_bytes: int) -> None:
        self._max_grammars = max_grammars
        self._max_bytes = max_bytes
        self._kept: OrderedDict[GrammarSpec, tuple[CompiledGrammar, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, spec: GrammarSpec) -> CompiledGrammar | None:
        """Return a kept grammar, which is then the last to go."""
        with self._lock:
            found = self._kept.get(spec)
            if found is None:
                return None
            self._kept.move_to_end(spec)
            return found[0]

    def put(self, spec: GrammarSpec, grammar: CompiledGrammar, size: int) -> None:
        """Keep a grammar, and let the ones not used for longest go."""
        with self._lock:
            if spec in self._kept:
                return
            self._kept[spec] = (grammar, size)
            self._bytes += size
            while len(self._kept) > self._max_grammars or self._bytes > self._max_bytes:
                _, (_, gone) = self._kept.popitem(last=False)
                self._bytes -= gone


def _size_of(value: Any) -> int:
    """Return the bytes of all texts in a spec."""
    if isinstance(value, str):
        return len(value.encode())
    if isinstance(value, tuple):
        return sum(map(_size_of, value)) + len(value)
    if value is None or isinstance(value, int):
        return 0
    return sum(_size_of(getattr(value, field.name)) for field in fields(value))


def _special_tokens(facts: Mapping[str, Any]) -> dict[str, int]:
    return {t["content"]: t["id"] for t in facts.get("added_tokens") or () if t.get("special")}


def _num_ids(facts: Mapping[str, Any]) -> int:
    """Return one more than the largest id of a tokenizer."""
    vocab = (facts.get("model") or {}).get("vocab") or {}
    ids = list(vocab.values()) if isinstance(vocab, dict) else [len(vocab) - 1]
    ids += [token["id"] for token in facts.get("added_tokens") or ()]
    return max(ids, default=-1) + 1
