"""What one token contributes to a text, as bytes: a token may be half of a character.

Decoders write tokens in one of three ways:

    byte level       each byte is a printable letter of its own: "Ġthe" is b" the"
    byte fallback    "▁the" is b" the", and "<0xF0>" is one byte
    others           whatever the decoder makes of the token alone
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tokenizers import Tokenizer as Backend

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_WORD_START = "\N{LOWER ONE EIGHTH BLOCK}"


class TokenBytes:
    """The bytes of every token of a vocabulary, worked out when they are asked for.

    Args:
        backend: The library's tokenizer.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._added = backend.get_added_tokens_decoder()
        self._kinds = frozenset(_decoder_kinds(backend))
        self._known: dict[int, bytes] = {}

    def of(self, token_id: int) -> bytes:
        """Return the bytes of a token; none for an id that has no token.

        The text of special tokens counts as theirs.

        Mutates: remembers the answer.
        """
        found = self._known.get(token_id)
        if found is None:
            found = self._known[token_id] = self._find(token_id)
        return found

    def _find(self, token_id: int) -> bytes:
        if token_id in self._added:
            return self._added[token_id].content.encode()
        token = self._backend.id_to_token(token_id) if token_id >= 0 else None
        if token is None:
            return b""
        if "ByteLevel" in self._kinds:
            return _from_letters(token)
        if "ByteFallback" in self._kinds or "Metaspace" in self._kinds:
            return _from_pieces(token)
        return self._backend.decode([token_id], skip_special_tokens=False).encode()


def _decoder_kinds(backend: Backend) -> Iterator[str]:
    """Yield the types of the decoders that this tokenizer applies, one after the other."""
    if backend.decoder is None:
        return
    state: dict[str, Any] = json.loads(backend.decoder.__getstate__())
    for part in state.get("decoders", [state]):
        yield part["type"]


def _from_letters(token: str) -> bytes:
    """Letters that stand for no byte are text as it is: some vocabularies have such tokens."""
    try:
        return bytes(_BYTE_OF_LETTER[letter] for letter in token)
    except KeyError:
        return token.encode()


def _from_pieces(token: str) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace(_WORD_START, " ").encode()


def _byte_letters() -> Mapping[str, int]:
    """Return GPT-2's table: printable bytes stand for themselves, the others follow from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in set(printable)]
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(0x100 + place): byte for place, byte in enumerate(others)}


_BYTE_OF_LETTER = _byte_letters()
