from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixserve.text.detokenizer import IncrementalDetokenizer
from radixserve.text.tokenizer import Tokenizer
from radixserve.text.tokenizer_files import TokenizerSettings
from tests.unit.text.sentencepiece_like import train_sentencepiece_like

VALID_TEXT = st.text(
    st.one_of(st.sampled_from("ab 🦜中ď\n"), st.characters(exclude_categories=["Cs"]))
)
CUTS = st.lists(st.integers(0, 60), max_size=8)


@pytest.fixture(scope="module")
def llama_like() -> Tokenizer:
    return Tokenizer(train_sentencepiece_like(), TokenizerSettings({"bos_token": "<s>"}))


def split(ids: list[int], cuts: list[int]) -> list[list[int]]:
    edges = [0, *sorted(cuts), len(ids)]
    return [ids[a:b] for a, b in itertools.pairwise(edges)]


def stream(tokenizer: Tokenizer, pushes: list[list[int]], *, skip: bool = True) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens=skip)
    return [*[detokenizer.push(ids) for ids in pushes], detokenizer.flush()]


@given(data=st.data(), cuts=CUTS, skip=st.booleans())
def test_the_pieces_of_any_ids_join_to_the_text_of_all_of_them(
    tokenizer: Tokenizer, data: st.DataObject, cuts: list[int], skip: bool
) -> None:
    ids = data.draw(st.lists(st.integers(-1, tokenizer.vocab_size + 3), max_size=40))

    pieces = stream(tokenizer, split(ids, cuts), skip=skip)

    assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=skip)


@given(text=VALID_TEXT, cuts=CUTS)
def test_the_pieces_of_a_text_join_to_it_and_hold_no_broken_character(
    tokenizer: Tokenizer, text: str, cuts: list[int]
) -> None:
    pieces = stream(tokenizer, split(tokenizer.encode(text), cuts))

    assert "".join(pieces) == text
    assert "".join(pieces).count("\ufffd") == text.count("\ufffd")


@given(text=VALID_TEXT, cuts=CUTS)
def test_byte_fallback_and_spaces_in_tokens_stream_like_the_whole(
    llama_like: Tokenizer, text: str, cuts: list[int]
) -> None:
    ids = llama_like.encode(text)

    assert "".join(stream(llama_like, split(ids, cuts))) == llama_like.decode(ids)


@pytest.mark.parametrize("character", ["🦜", "中", "ď"])
def test_a_character_of_several_tokens_comes_out_with_its_last_one(
    tokenizer: Tokenizer, character: str
) -> None:
    ids = tokenizer.encode(character)
    assert len(ids) > 1

    pieces = stream(tokenizer, [[i] for i in ids])

    assert pieces == [*[""] * (len(ids) - 1), character, ""]


def test_complete_text_is_not_held_back_by_an_unfinished_character(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("parrot🦜")

    assert stream(tokenizer, [ids[:-1], ids[-1:]]) == ["parrot", "🦜", ""]


def test_a_sequence_that_ends_inside_a_character_says_so_once(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a🦜")[:-1]

    assert stream(tokenizer, [ids]) == ["a", "\ufffd"]


def test_a_run_of_bytes_that_is_no_character_is_not_lost(tokenizer: Tokenizer) -> None:
    lead = tokenizer.encode("🦜")[0]
    ids = [lead] * 5 + tokenizer.encode("ok")

    assert "".join(stream(tokenizer, [[i] for i in ids])) == "\ufffd" * 5 + "ok"


def test_a_replacement_character_in_the_text_itself_is_kept(tokenizer: Tokenizer) -> None:
    assert "".join(stream(tokenizer, [tokenizer.encode("a\ufffdb\ufffd")])) == "a\ufffdb\ufffd"


def test_special_tokens_and_unknown_ids_are_silent(tokenizer: Tokenizer) -> None:
    assert stream(tokenizer, [[1, 2, -5, 10**9], tokenizer.encode("hi"), [2]]) == ["", "hi", "", ""]


def test_special_tokens_are_shown_when_asked_for(tokenizer: Tokenizer) -> None:
    assert stream(tokenizer, [[1], [2]], skip=False) == ["<|im_start|>", "<|im_end|>", ""]


def test_a_detokenizer_starts_afresh_after_flush(tokenizer: Tokenizer) -> None:
    detokenizer = IncrementalDetokenizer(tokenizer)
    detokenizer.push(tokenizer.encode("🦜")[:-1])
    detokenizer.flush()

    assert detokenizer.push(tokenizer.encode("hi")) == "hi"
    assert detokenizer.flush() == ""


def test_a_decoder_that_takes_text_back_does_not_end_the_stream(llama_like: Tokenizer) -> None:
    """One wrong byte makes the library's fallback decoder turn the whole run of bytes to U+FFFD."""
    vocabulary = llama_like.backend.get_vocab()
    ids = [vocabulary[token] for token in ("<0xC3>", "<0xA9>", "<0xFF>", "h", "i")]
    assert llama_like.decode(ids) == "\ufffd\ufffd\ufffdhi"

    assert stream(llama_like, [[i] for i in ids]) == ["", "é", "", "\ufffd\ufffdh", "i", ""]
