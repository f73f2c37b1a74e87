from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from radixserve.errors import InvalidRequestError
from radixserve.text.chat_template import ChatTemplate
from tests.unit.text.template_families import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve.text.tokenizer import Tokenizer

HANDWRITTEN = {
    "chatml": (
        "<|im_start|>user\nA<|im_end|>\n<|im_start|>assistant\nok <|im_end|>\n"
        "<|im_start|>user\nB<|im_end|>\n<|im_start|>assistant\nok"
    ),
    "llama3": (
        "<|im_start|><|start_header_id|>user<|end_header_id|>\n\nA<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nok<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nB<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nok"
    ),
    "mistral": "<|im_start|>[INST] A [/INST] ok <|im_end|>[INST] B [/INST] ok",
}


def chat_of(*texts: str) -> list[dict[str, Any]]:
    return [
        {"role": "assistant" if i % 2 else "user", "content": text} for i, text in enumerate(texts)
    ]


def continued(tokenizer: Tokenizer, source: str, messages: Sequence[dict[str, Any]]) -> str:
    chat = ChatTemplate({"default": source}, tokenizer)
    return chat.render(messages, add_generation_prompt=False, continue_final_message=True)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_prompt_ends_with_the_last_message_though_an_earlier_one_is_alike(
    tokenizer: Tokenizer, family: str
) -> None:
    messages = chat_of("A", "ok ", "B", "ok")

    assert continued(tokenizer, FAMILIES[family], messages) == HANDWRITTEN[family]


@pytest.mark.parametrize(
    ("family", "end"),
    [("chatml", "ok \n"), ("llama3", "\n\nok"), ("mistral", "[/INST] ok")],
)
def test_white_space_at_the_end_goes_where_the_template_trims_it(
    tokenizer: Tokenizer, family: str, end: str
) -> None:
    assert continued(tokenizer, FAMILIES[family], chat_of("A", "ok \n")).endswith(end)


@pytest.mark.parametrize("text", ["", "  "])
def test_an_empty_beginning_keeps_the_templates_own_white_space(
    tokenizer: Tokenizer, text: str
) -> None:
    prompt = continued(tokenizer, FAMILIES["llama3"], chat_of("A", text))

    assert prompt.endswith("<|start_header_id|>assistant<|end_header_id|>\n\n")


def test_the_text_to_continue_may_come_in_parts(tokenizer: Tokenizer) -> None:
    messages = chat_of("A", "")
    messages[1]["content"] = [{"type": "text", "text": "o"}, {"type": "text", "text": "k"}]

    prompt = continued(tokenizer, FAMILIES["chatml"], messages)

    assert prompt.endswith("<|im_start|>assistant\nok")


def test_private_characters_in_a_chat_do_not_confuse_the_cut(tokenizer: Tokenizer) -> None:
    text = "\U00100000\U00100001 ok\U00100000"

    assert continued(tokenizer, FAMILIES["chatml"], chat_of(text, text)).endswith(f"\n{text}")


@pytest.mark.parametrize(
    ("texts", "options"),
    [
        (("A", "ok"), {"add_generation_prompt": True}),
        (("A",), {"add_generation_prompt": False}),
    ],
    ids=["both flags", "no assistant at the end"],
)
def test_a_continuation_that_makes_no_sense_is_refused(
    tokenizer: Tokenizer, texts: tuple[str, ...], options: dict[str, Any]
) -> None:
    chat = ChatTemplate({"default": FAMILIES["chatml"]}, tokenizer)

    with pytest.raises(InvalidRequestError) as caught:
        chat.render(chat_of(*texts), continue_final_message=True, **options)

    assert caught.value.param == "continue_final_message"


def test_a_template_that_drops_the_last_message_cannot_continue_it(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequestError, match="leaves out"):
        continued(tokenizer, "{{ messages[0].content }}", chat_of("A", "ok"))
