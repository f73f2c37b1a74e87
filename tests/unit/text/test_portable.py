"""A tokenizer that travels as JSON encodes as the one it was made of."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixserve.errors import InvalidRequestError, ModelLoadError
from radixserve.text.chat_template import ChatTemplate
from radixserve.text.portable import read_sheet, tokenizer_sheet
from radixserve.text.tokenizer import Tokenizer
from radixserve.text.tokenizer_files import TokenizerSettings
from tests.unit.text.sentencepiece_like import train_sentencepiece_like
from tests.unit.text.template_families import FAMILIES

if TYPE_CHECKING:
    from pathlib import Path

TEXTS = ["", " ", "Once upon a time", "a\n\nb\tc", "<|im_end|>", "\U0001f99c \u4e2d \u00e9"]


def travelled(tokenizer: Tokenizer, template: ChatTemplate) -> tuple[Tokenizer, ChatTemplate]:
    """Return both as they arrive at the other end."""
    return read_sheet(json.loads(json.dumps(tokenizer_sheet(tokenizer, template))))


def ids_of(template: ChatTemplate, messages: list[dict[str, str]]) -> Any:
    try:
        return template.encode(messages)
    except InvalidRequestError as refused:
        return str(refused)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("adds_bos", [None, True, False])
@given(text=st.one_of(st.sampled_from(TEXTS), st.text(max_size=30)))
def test_texts_and_chats_have_the_same_ids(
    tokenizer: Tokenizer, family: str, adds_bos: bool | None, text: str
) -> None:
    settings = TokenizerSettings(tokenizer.named_tokens, adds_bos, tokenizer.eos_token_ids)
    here = Tokenizer(tokenizer.backend, settings)
    template = ChatTemplate({"default": FAMILIES[family]}, here)
    there, their_template = travelled(here, template)
    messages = [{"role": "user", "content": text}]
    assert there.encode(text) == here.encode(text)
    assert there.encode(text, add_special_tokens=False) == here.encode(
        text, add_special_tokens=False
    )
    assert there.decode(here.encode(text)) == here.decode(here.encode(text))
    assert ids_of(their_template, messages) == ids_of(template, messages)
    assert there.eos_token_ids == here.eos_token_ids


def test_other_kinds_of_tokenizers_travel_too() -> None:
    here = Tokenizer(train_sentencepiece_like(), TokenizerSettings({}))
    there, _ = travelled(here, ChatTemplate({}, here))
    for text in TEXTS:
        assert there.encode(text) == here.encode(text)


def test_one_that_encodes_otherwise_is_refused(folder: Path, tokenizer: Tokenizer) -> None:
    sheet = tokenizer_sheet(tokenizer, ChatTemplate.from_folder(folder, tokenizer))
    assert sheet["samples"]["chat"]
    sheet["samples"]["text"][3] += 1
    with pytest.raises(ModelLoadError, match="same versions"):
        read_sheet(sheet)


@pytest.mark.parametrize("change", [{"tokenizer": "{}"}, {"named_tokens": None}])
def test_one_that_cannot_be_read_is_refused(
    folder: Path, tokenizer: Tokenizer, change: dict[str, Any]
) -> None:
    sheet = tokenizer_sheet(tokenizer, ChatTemplate.from_folder(folder, tokenizer))
    with pytest.raises(ModelLoadError, match="cannot be read"):
        read_sheet(sheet | change)
    del sheet["chat_templates"]
    with pytest.raises(ModelLoadError, match="cannot be read"):
        read_sheet(sheet)


def test_a_template_that_shows_the_date_has_no_sample(tokenizer: Tokenizer) -> None:
    source = "{{ strftime_now('%d') }}" + FAMILIES["chatml"]
    sheet = tokenizer_sheet(tokenizer, ChatTemplate({"default": source}, tokenizer))
    assert sheet["samples"]["chat"] is None
