"""Token ids to text while they are being generated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenizers.decoders import DecodeStream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve.text.tokenizer import Tokenizer

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class IncrementalDetokenizer:
    """Turns one sequence's ids into pieces of text that join to the text of all its ids.

    A piece never ends inside a character: the ids of an unfinished one are held until it is
    finished or until `flush`. That the pieces join to the whole holds for every decoder that never
    takes back text once more ids follow, which is so for byte-level and SentencePiece models.

    Args:
        tokenizer: The model's tokenizer.
        skip_special_tokens: Leave special tokens out of the text.

    Source: ggml-org/llama.cpp#4036.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._silent = frozenset(tokenizer.special_tokens.values()) if self._skip else frozenset()
        self._start()

    def _start(self) -> None:
        self._stream: DecodeStream | None = DecodeStream(skip_special_tokens=self._skip)
        self._ids: list[int] = []
        self._num_sent = 0
        self._is_holding = False

    def push(self, ids: Sequence[int]) -> str:
        """Return the text that these ids complete.

        Mutates: Keeps the ids.
        Complexity: O(len(ids)) decodes of a few ids each.
        """
        return "".join([self._step(i) for i in ids if self._has_text(i)])

    def flush(self) -> str:
        """Return the text still held and start afresh.

        Only here may half a character come out, as U+FFFD: the sequence really ends inside it.

        Mutates: Forgets all ids.
        """
        rest = self._decode_all()[self._num_sent :] if self._is_holding else ""
        self._start()
        return rest

    def _has_text(self, token_id: int) -> bool:
        """Ids without text would only make the stream's window grow."""
        return 0 <= token_id < self._tokenizer.vocab_size and token_id not in self._silent

    def _step(self, token_id: int) -> str:
        self._ids.append(token_id)
        piece = self._advance(token_id)
        self._num_sent += len(piece)
        self._is_holding = not piece
        return piece

    def _advance(self, token_id: int) -> str:
        if self._stream is None:
            return self._settled_text()[self._num_sent :]
        try:
            return self._stream.step(self._tokenizer.backend, token_id) or ""
        except Exception:
            # The library gives up, with a bare Exception, where a later id changes earlier text.
            # What was sent cannot be taken back; from here on, send what goes beyond it.
            self._stream = None
            return self._settled_text()[self._num_sent :]

    def _settled_text(self) -> str:
        return self._decode_all().rstrip(REPLACEMENT)

    def _decode_all(self) -> str:
        return self._tokenizer.decode(self._ids, skip_special_tokens=self._skip)
