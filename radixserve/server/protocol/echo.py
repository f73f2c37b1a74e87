"""A prompt as the beginning of a choice, and where tokens begin in a text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from radixserve.text.detokenizer import IncrementalDetokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt to be repeated.

    Attributes:
        text: As the caller wrote it, or as its tokens read.
        ids: Its tokens.
        offsets: Where each token begins in the text, in characters; empty where nobody asks.
    """

    text: str
    ids: Sequence[int]
    offsets: Sequence[int] = ()


class TokenOffsets:
    """Where each token begins in the text of all tokens so far, in characters.

    The tokens of one character begin where it begins.

    Args:
        tokenizer: Of the served model.
        skip_special_tokens: Whether special tokens are no part of the text.
        start: Characters before the first token.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool, start: int = 0) -> None:
        self._bytes = tokenizer.token_bytes
        self._pieces = IncrementalDetokenizer(tokenizer, skip_special_tokens=skip_special_tokens)
        self._end = start

    def of(self, token_id: int) -> int:
        """Return where the next token begins. Mutates: the text goes on by it."""
        start = self._end
        piece = self._pieces.push([token_id])
        self._end += len(piece)
        own = self._bytes.of(token_id).decode(errors="ignore")
        # What was held before, half of a character that came to nothing, comes out with it.
        return self._end - len(own) if own and piece.endswith(own) else start


def echo_of(
    prompt: str | Sequence[int],
    ids: Sequence[int],
    tokenizer: Tokenizer,
    *,
    skip_special_tokens: bool,
    needs_offsets: bool,
) -> Echo:
    """Return a prompt as a choice repeats it.

    Args:
        prompt: As the caller wrote it.
        ids: Its tokens; the last of them if it was truncated.
        skip_special_tokens: Leave them out of the text of a prompt that came as ids.
    Complexity: O(len(ids)) decodes where offsets are needed.
    """
    keeps = not isinstance(prompt, str) and not skip_special_tokens
    text = prompt if isinstance(prompt, str) else _text(ids, tokenizer, keeps_special=keeps)
    if not needs_offsets:
        return Echo(text, ids)
    # A text may have special tokens that were written out, and others that the tokenizer added.
    keeps = keeps or isinstance(prompt, str)
    decoded = _text(ids, tokenizer, keeps_special=keeps)
    added = len(decoded) - len(text) if decoded.endswith(text) else 0
    offsets = TokenOffsets(tokenizer, skip_special_tokens=not keeps)
    starts = (offsets.of(token_id) - added for token_id in ids)
    return Echo(text, ids, [min(max(0, start), len(text)) for start in starts])


def _text(ids: Sequence[int], tokenizer: Tokenizer, *, keeps_special: bool) -> str:
    return tokenizer.decode(ids, skip_special_tokens=not keeps_special)
