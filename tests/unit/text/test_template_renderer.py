"""Our renderer and that of transformers give the same prompts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from radixserve.text.chat_template import ChatTemplate
from tests.unit.text.template_families import FAMILIES

if TYPE_CHECKING:
    from pathlib import Path

    from radixserve.text.tokenizer import Tokenizer

KITCHEN_SINK = """\
{%- set ns = namespace(count=0) -%}
  {% for message in messages %}
    {% if loop.index0 > 2 %}{% break %}{% endif %}
    {%- set ns.count = ns.count + 1 %}
    {% generation %}{{ message.content | trim }}{% endgeneration %}
    {{ message | tojson }} {{ message | tojson(indent=2) }} {{ '<&é>' | tojson(ensure_ascii=True) }}
  {% endfor %}
{{ ns.count }} {{ tools is none }} {{ documents is none }} {{ documents is defined }}
{{ eos_token }} {{ missing is defined }} {{ strftime_now('%%') }} {{ dict(a=1) | tojson }}
"""

CHATS: dict[str, list[dict[str, Any]]] = {
    "one turn": [{"role": "user", "content": " What is <b>this</b> & that? 🦜 "}],
    "three turns": [
        {"role": "user", "content": "A"},
        {"role": "assistant", "content": "ok "},
        {"role": "user", "content": "B\n"},
    ],
    "to be continued": [
        {"role": "user", "content": "A"},
        {"role": "assistant", "content": "ok"},
        {"role": "user", "content": "B"},
        {"role": "assistant", "content": "ok"},
    ],
}


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(str(folder))


@pytest.mark.parametrize("messages", CHATS.values(), ids=CHATS)
@pytest.mark.parametrize("prompt", [True, False], ids=["with prompt", "without"])
@pytest.mark.parametrize(
    "source", [*FAMILIES.values(), KITCHEN_SINK], ids=[*FAMILIES, "kitchen sink"]
)
def test_a_prompt_is_that_of_transformers(
    reference: Any, tokenizer: Tokenizer, source: str, prompt: bool, messages: list[dict[str, Any]]
) -> None:
    chat = ChatTemplate({"default": source}, tokenizer)
    options: dict[str, Any] = {"add_generation_prompt": prompt}

    text = reference.apply_chat_template(messages, chat_template=source, tokenize=False, **options)
    ids = reference.apply_chat_template(
        messages, chat_template=source, return_dict=False, **options
    )

    assert chat.render(messages, **options) == text
    assert chat.encode(messages, **options) == ids


@pytest.mark.parametrize("source", FAMILIES.values(), ids=FAMILIES)
def test_a_continued_prompt_is_that_of_transformers(
    reference: Any, tokenizer: Tokenizer, source: str
) -> None:
    messages = CHATS["to be continued"]
    text = reference.apply_chat_template(
        messages, chat_template=source, tokenize=False, continue_final_message=True
    )
    chat = ChatTemplate({"default": source}, tokenizer)

    rendered = chat.render(messages, add_generation_prompt=False, continue_final_message=True)

    assert rendered == text
