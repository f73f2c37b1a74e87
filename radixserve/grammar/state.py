"""Where one sequence is in a compiled grammar."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llguidance import LLMatcher

    from radixserve.types import TokenId

WORD_BITS = 32
_WORD_BYTES = 4
_SHOWN_LEN = 300

MAX_FORCED = 32
"""Most forced tokens told at once: a step stays short however long a fixed text is."""


class CompiledGrammar:
    """A grammar over one model's vocabulary, ready to be followed.

    Args:
        prototype: Before the first token, and never moved.
        vocab_size: Ids the masks cover.
        end_token_id: Ends an output after which nothing may follow.
    """

    def __init__(self, prototype: LLMatcher, vocab_size: int, end_token_id: TokenId | None) -> None:
        self._prototype = prototype
        self.vocab_size = vocab_size
        self.end_token_id = end_token_id

    def start(self) -> MatcherState:
        """Return the state before the first output token."""
        return MatcherState(self._prototype.deep_copy(), self.vocab_size)


class MatcherState:
    """A sequence's place in a grammar: a function of the grammar and the tokens accepted.

    Where a text is forced, so are its tokens: those that the tokenizer itself makes of the text,
    except a last one that might become longer. They are decided once, when the forced text
    begins, and are then the only ones allowed; so it makes no difference to the output whether
    they are taken at once or sampled one by one.

    Args:
        matcher: Owned by this state from now on.
        vocab_size: Ids the masks cover.
    Source: guidance-ai/llguidance, docs/fast_forward.md.
    """

    __slots__ = ("_matcher", "_num_words", "_pending")

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._num_words = -(-vocab_size // WORD_BITS)
        self._pending: list[TokenId] = matcher.compute_ff_tokens()
        """Forced tokens, the next one last."""
        self._pending.reverse()

    def accept(self, token_ids: Sequence[TokenId]) -> bool:
        """Go on by some tokens, as far as the grammar allows.

        Returns: whether it allows all of them.
        Mutates: the state.
        """
        return all(self._accept(token) for token in token_ids)

    def _accept(self, token: TokenId) -> bool:
        # Unlike `consume_token`, a refusal leaves the matcher as it was.
        if self._matcher.is_error() or self._matcher.try_consume_tokens([token]) != 1:
            return False
        if self._pending and self._pending[-1] == token:
            self._pending.pop()
        else:
            self._pending.clear()
        if not self._pending:
            self._pending = self._matcher.compute_ff_tokens()
            self._pending.reverse()
        return True

    def forced(self) -> list[TokenId]:
        """Return the tokens that must come next whatever the model says: at most `MAX_FORCED`."""
        return self._pending[: -MAX_FORCED - 1 : -1]

    def allowed(self) -> memoryview:
        """Return a bit for each id of the vocabulary, as 32-bit words, lowest bit first.

        Where nothing may follow no bit is set but those of the tokenizer's own end tokens.

        Complexity: O(vocab) at worst; mostly 10 to 200 microseconds, without the interpreter's
            lock.
        """
        if self._pending:
            words = array("I", bytes(self._num_words * _WORD_BYTES))
            token = self._pending[-1]
            words[token // WORD_BITS] = 1 << (token % WORD_BITS)
            return memoryview(words)
        mask = self._matcher.compute_bitmask()
        return memoryview(mask)[: self._num_words * _WORD_BYTES].cast("I")

    @property
    def may_end(self) -> bool:
        """Whether what has been accepted is a whole output."""
        return self._matcher.is_accepting()

    @property
    def is_complete(self) -> bool:
        """Whether nothing may follow but the end."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    @property
    def failure(self) -> str | None:
        """Why the grammar cannot be followed any further: it has met a limit; None while it can."""
        if not self._matcher.is_error():
            return None
        return first_line(self._matcher.get_error())


def first_line(message: str) -> str:
    """Return what the library says first, without its marks: the rest shows its inside."""
    lines = [line.strip() for line in message.replace("<non-verbose/>", "").splitlines()]
    lines = [line for line in lines if line] or ["no reason given"]
    causes = [line.removeprefix("error: ") for line in lines[1:] if line.startswith("error: ")]
    return " ".join([lines[0][:_SHOWN_LEN], *(cause[:_SHOWN_LEN] for cause in causes[:1])])
