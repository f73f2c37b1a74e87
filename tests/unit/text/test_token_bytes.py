"""What single tokens contribute to a text, for each kind of decoder."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from radixserve.text.token_bytes import TokenBytes
from tests.kit.tiny_tokenizer import train_tiny_tokenizer

TEXT = "the parrot \N{PARROT} said: caf\u00e9, \u4e2d\u6587!\n"


def backend_of(vocabulary: list[str], decoder: decoders.Decoder) -> Backend:
    ids = {token: place for place, token in enumerate(vocabulary)}
    backend = Backend(models.BPE(vocab=ids, merges=[], unk_token=None))
    backend.decoder = decoder
    return backend


def test_the_bytes_of_a_texts_tokens_join_to_the_texts_bytes() -> None:
    backend = train_tiny_tokenizer()
    tokens = TokenBytes(backend)
    ids = backend.encode(TEXT, add_special_tokens=False).ids
    assert b"".join(map(tokens.of, ids)) == TEXT.encode()
    assert any(len(tokens.of(token)) == 1 and tokens.of(token)[0] >= 0x80 for token in ids)


def test_every_byte_has_a_token_of_its_own() -> None:
    backend = train_tiny_tokenizer()
    tokens = TokenBytes(backend)
    singles = {tokens.of(token) for token in range(backend.get_vocab_size())}
    assert {bytes([byte]) for byte in range(256)} <= singles


def test_special_tokens_are_their_text_and_unknown_ids_are_nothing() -> None:
    tokens = TokenBytes(train_tiny_tokenizer())
    assert tokens.of(1) == b"<|im_start|>"
    assert tokens.of(1_000_000) == tokens.of(-1) == b""


@pytest.mark.parametrize(
    ("token", "raw"),
    [
        ("\N{LOWER ONE EIGHTH BLOCK}the", b" the"),
        ("the", b"the"),
        ("<0xF0>", b"\xf0"),
        ("<0x0a>", b"\n"),
        ("<0xF0", b"<0xF0"),
    ],
)
def test_pieces_with_byte_fallback(token: str, raw: bytes) -> None:
    decoder = decoders.Sequence(
        [decoders.Replace("\N{LOWER ONE EIGHTH BLOCK}", " "), decoders.ByteFallback()]
    )
    assert TokenBytes(backend_of([token], decoder)).of(0) == raw


def test_other_decoders_are_asked() -> None:
    assert TokenBytes(backend_of(["parrot"], decoders.WordPiece())).of(0) == b"parrot"


def test_letters_that_stand_for_no_byte_are_text() -> None:
    assert TokenBytes(backend_of(["\u4e2d"], decoders.ByteLevel())).of(0) == "\u4e2d".encode()
