"""Tools and calls in prompts: by the template where it knows them, else in plain text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from radixserve.errors import InvalidRequestError
from radixserve.text.chat_template import ChatTemplate
from tests.kit.tiny_tokenizer import CHATML

if TYPE_CHECKING:
    from radixserve.text.tokenizer import Tokenizer

TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
USER = {"role": "user", "content": "2 plus 3?"}
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "5"}

WITH_TOOLS = (
    "{% if tools %}TOOLS {{ tools | tojson }}\n{% endif %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% for call in m.tool_calls %}{{ call.function | tojson }}{% endfor %}{{ '\\n' }}{% endfor %}"
)
THINKING = CHATML.replace("assistant\\n'", "assistant\\n<think>\\n'")


def template(tokenizer: Tokenizer, source: str) -> ChatTemplate:
    return ChatTemplate({"default": source}, tokenizer)


def assistant(**fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [CALL], **fields}


def test_a_template_that_knows_tools_gets_them_as_they_are(tokenizer: Tokenizer) -> None:
    rendered = template(tokenizer, WITH_TOOLS).render([USER, assistant(), RESULT], tools=TOOLS)
    assert rendered == (
        'TOOLS [{"type": "function", "function": {"name": "add", "parameters": {}}}]\n'
        'user: 2 plus 3?\nassistant: {"name": "add", "arguments": {"a": 2}}\ntool: 5\n'
    )


def test_a_template_that_knows_none_gets_them_in_the_systems_message(tokenizer: Tokenizer) -> None:
    chat = template(tokenizer, CHATML)
    rendered = chat.render([USER], tools=TOOLS)
    head, _, rest = rendered.partition("<|im_end|>\n")
    assert head.startswith("<|im_start|>system\n")
    assert '<tools>\n{"type": "function", "function": {"name": "add"' in head
    assert "<tool_call>\n{" in head
    assert rest == "<|im_start|>user\n2 plus 3?<|im_end|>\n<|im_start|>assistant\n"


def test_what_the_system_said_stays_in_front(tokenizer: Tokenizer) -> None:
    rendered = template(tokenizer, CHATML).render(
        [{"role": "system", "content": "Be kind."}, USER], tools=TOOLS
    )
    assert rendered.startswith("<|im_start|>system\nBe kind.\n\nYou can call functions")
    assert rendered.count("system\n") == 1


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}])
def test_calls_and_results_of_earlier_turns_become_text(
    tokenizer: Tokenizer, content: dict[str, Any]
) -> None:
    """Source: abetlen/llama-cpp-python#1805."""
    chat = template(tokenizer, CHATML)
    turns = [USER, assistant(**content), RESULT, {**RESULT, "content": "6"}]
    assert chat.render(turns) == (
        "<|im_start|>user\n2 plus 3?<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call>'
        "<|im_end|>\n<|im_start|>user\n<tool_response>\n5\n</tool_response>\n"
        "<tool_response>\n6\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


def test_text_beside_a_call_stays(tokenizer: Tokenizer) -> None:
    rendered = template(tokenizer, CHATML).render([USER, assistant(content="I add."), RESULT])
    assert "assistant\nI add.\n<tool_call>\n" in rendered


def test_a_control_token_in_a_tool_is_plain_text(tokenizer: Tokenizer) -> None:
    end = tokenizer.special_tokens["<|im_end|>"]
    tool = {"type": "function", "function": {"name": "add", "description": "<|im_end|>"}}
    for source in (CHATML, CHATML + "{% if tools %}{{ tools[0].function.description }}{% endif %}"):
        chat = template(tokenizer, source)
        rendered = chat.render([USER], tools=[tool])
        ids = chat.encode([USER], tools=[tool])
        assert "<|im_end|>" in tokenizer.decode(ids, skip_special_tokens=False)
        assert ids.count(end) == rendered.count("<|im_end|>") - 1


def test_a_template_that_refuses_the_system_refuses_with_its_own_words(
    tokenizer: Tokenizer,
) -> None:
    """Source: EricLBuehler/mistral.rs#506."""
    source = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system here') }}{% endif %}"
        "{{ messages[0].content }}"
    )
    chat = template(tokenizer, source)
    assert chat.render([USER]) == "2 plus 3?"
    with pytest.raises(InvalidRequestError, match="no system here"):
        chat.render([USER], tools=TOOLS)


def test_a_prompt_that_opens_the_thoughts_is_known(tokenizer: Tokenizer) -> None:
    chat = template(tokenizer, THINKING)
    assert chat.has_reasoning
    assert chat.opens_reasoning(chat.encode([USER]))
    assert not chat.opens_reasoning(chat.encode([USER], add_generation_prompt=False))
    assert not template(tokenizer, CHATML).has_reasoning


def test_the_style_of_calls_is_that_of_the_template(tokenizer: Tokenizer) -> None:
    assert template(tokenizer, CHATML).call_style.name == "hermes"
    assert template(tokenizer, "{{ '[TOOL_CALLS]' }}").call_style.name == "mistral"
