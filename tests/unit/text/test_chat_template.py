from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from radixserve.errors import InvalidRequestError, ModelLoadError, UnsupportedFeatureError
from radixserve.text.chat_template import ChatTemplate
from radixserve.text.tokenizer import Tokenizer
from tests.kit.tiny_tokenizer import CHATML, write_tiny_tokenizer
from tests.unit.text.template_families import FAMILIES, MISTRAL

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

USER = {"role": "user", "content": "What is the capital of France?"}
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}


def template(tokenizer: Tokenizer, source: str = CHATML) -> ChatTemplate:
    return ChatTemplate({"default": source}, tokenizer)


def refusal(
    chat: ChatTemplate, *messages: Mapping[str, Any], **options: Any
) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        chat.render(messages, **options)
    return caught.value


def test_a_chat_is_rendered_by_the_folders_template(folder: Path, tokenizer: Tokenizer) -> None:
    chat = ChatTemplate.from_folder(folder, tokenizer)

    assert chat.is_available
    assert chat.render([USER]) == (
        "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert chat.render([USER], add_generation_prompt=False).endswith("<|im_end|>\n")


@pytest.mark.parametrize("source", FAMILIES.values(), ids=FAMILIES)
def test_a_chat_has_the_ids_of_its_rendered_text(tokenizer: Tokenizer, source: str) -> None:
    chat = template(tokenizer, source)

    assert chat.encode([USER]) == tokenizer.encode(chat.render([USER]))


@pytest.mark.parametrize("source", ["{{ bos_token }}", ""], ids=["template", "tokenizer"])
def test_a_prompt_has_one_bos_whoever_puts_it_there(tmp_path: Path, source: str) -> None:
    folder = write_tiny_tokenizer(
        tmp_path, chat_template=source + "{{ messages[0].content }}{{ eos_token }}"
    )
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | {"add_bos_token": True}
    path.write_text(json.dumps(config), encoding="utf-8")
    tokenizer = Tokenizer.from_folder(folder)
    chat = ChatTemplate.from_folder(folder, tokenizer)
    typed = {"role": "user", "content": "a <|im_end|> b"}

    for ids in (chat.encode([USER]), chat.encode([typed]), tokenizer.encode(chat.render([USER]))):
        assert ids[0] == tokenizer.bos_token_id
        assert ids.count(1) == 1
        assert ids.count(2) == 1


@pytest.mark.parametrize("source", FAMILIES.values(), ids=FAMILIES)
def test_parts_of_text_give_the_prompt_of_one_string(tokenizer: Tokenizer, source: str) -> None:
    chat = template(tokenizer, source)
    parts = [{"type": "text", "text": "What is the "}, {"type": "text", "text": "answer?"}]

    in_parts = chat.render([{"role": "user", "content": parts}])

    assert in_parts == chat.render([{"role": "user", "content": "What is the answer?"}])


def test_a_part_that_is_no_text_is_refused_by_its_place(tokenizer: Tokenizer) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}

    error = refusal(template(tokenizer), USER, {"role": "user", "content": [image]})

    assert isinstance(error, UnsupportedFeatureError)
    assert error.param == "messages[1].content"
    assert "image_url" in error.message


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": None}, "messages[0].content"),
        ({"role": "user", "content": 5}, "messages[0].content"),
        ({"role": "user", "content": ["text"]}, "messages[0].content"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content"),
        ({"role": "assistant", "content": None}, "messages[0].content"),
        ({"role": "assistant", "tool_calls": []}, "messages[0].content"),
        ({"content": "hi"}, "messages[0].role"),
        ("hi", "messages[0]"),
    ],
)
def test_an_unusable_message_is_refused_by_its_place(
    tokenizer: Tokenizer, message: Any, param: str
) -> None:
    assert refusal(template(tokenizer), message).param == param


def test_a_chat_without_messages_is_refused(tokenizer: Tokenizer) -> None:
    assert refusal(template(tokenizer)).param == "messages"


@pytest.mark.parametrize("source", [CHATML, FAMILIES["llama3"]], ids=["chatml", "llama3"])
def test_tool_calls_need_no_content(tokenizer: Tokenizer, source: str) -> None:
    chat = template(tokenizer, source)
    answer = {"role": "tool", "tool_call_id": "c1", "content": "5"}
    variants: list[dict[str, Any]] = [{}, {"content": None}, {"content": ""}]

    prompts = {
        chat.render([USER, {"role": "assistant", "tool_calls": [CALL], **content}, answer])
        for content in variants
    }

    [prompt] = prompts
    assert "None" not in prompt
    assert "null" not in prompt


def test_a_template_gets_the_arguments_of_a_tool_call_as_an_object(tokenizer: Tokenizer) -> None:
    chat = template(tokenizer, "{{ messages[0].tool_calls[0].function.arguments | tojson }}")

    def rendered(arguments: str) -> str:
        call = {"type": "function", "function": {"name": "add", "arguments": arguments}}
        return chat.render([{"role": "assistant", "tool_calls": [call]}])

    assert rendered('{"a": "<2>"}') == '{"a": "<2>"}'
    assert rendered("") == "{}"
    assert rendered('{"a":') == '"{\\"a\\":"'


def test_null_fields_are_absent_for_a_template(tokenizer: Tokenizer) -> None:
    chat = template(tokenizer, "{{ 'name' in messages[0] }} {{ 'tool_calls' in messages[0] }}")

    assert chat.render([{**USER, "name": None, "tool_calls": []}]) == "False False"


def test_a_templates_refusal_reaches_the_caller(tokenizer: Tokenizer) -> None:
    system = {"role": "system", "content": "Be kind."}

    error = refusal(template(tokenizer, MISTRAL), system, USER)

    assert error.status_hint == 400
    assert error.message == "Only user and assistant roles!"
    assert error.param == "messages"


@pytest.mark.parametrize(
    "source",
    ["{{ nothing.at.all }}", "{{ messages[0].content + 1 }}", "{{ ''.__class__.__mro__() }}"],
)
def test_a_template_that_breaks_on_a_chat_refuses_it(tokenizer: Tokenizer, source: str) -> None:
    error = refusal(template(tokenizer, source), USER)

    assert error.param == "messages"
    assert error.message


def test_without_a_template_the_caller_learns_how_to_give_one(tmp_path: Path) -> None:
    folder = write_tiny_tokenizer(tmp_path, chat_template=None)
    chat = ChatTemplate.from_folder(folder, Tokenizer.from_folder(folder))

    assert not chat.is_available
    assert "chat_template.jinja" in refusal(chat, USER).message


def test_a_template_that_is_no_jinja_stops_the_start(tokenizer: Tokenizer) -> None:
    with pytest.raises(ModelLoadError, match="line 2"):
        template(tokenizer, "\n{% for %}")


def test_an_override_replaces_the_folders_template(folder: Path, tokenizer: Tokenizer) -> None:
    chat = ChatTemplate.from_folder(folder, tokenizer, override="Q: {{ messages[0].content }}")

    assert chat.render([{"role": "user", "content": "why?"}]) == "Q: why?"


@pytest.mark.parametrize(
    ("value", "plain", "with_tools"),
    [
        ("one", "one", "one"),
        ([{"name": "default", "template": "one"}], "one", "one"),
        (
            [{"name": "tool_use", "template": "two"}, {"name": "default", "template": "one"}],
            "one",
            "two",
        ),
    ],
)
def test_templates_of_the_config_are_chosen_by_name(
    tmp_path: Path, value: object, plain: str, with_tools: str
) -> None:
    folder = write_tiny_tokenizer(tmp_path, chat_template=None)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | {"chat_template": value}
    path.write_text(json.dumps(config), encoding="utf-8")
    chat = ChatTemplate.from_folder(folder, Tokenizer.from_folder(folder))

    assert chat.render([USER]) == plain
    assert chat.render([USER], tools=[{"type": "function"}]) == with_tools
    assert chat.render([USER], tools=[]) == plain


def test_named_template_files_of_a_folder_are_read(tmp_path: Path) -> None:
    folder = write_tiny_tokenizer(tmp_path, chat_template="one")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("two", encoding="utf-8")
    chat = ChatTemplate.from_folder(folder, Tokenizer.from_folder(folder))

    assert chat.render([USER]) == "one"
    assert chat.render([USER], tools=[{"type": "function"}]) == "two"


def test_template_kwargs_reach_the_template(tokenizer: Tokenizer) -> None:
    chat = template(tokenizer, "{{ enable_thinking }} {{ bos_token }}")

    assert chat.render([USER], template_kwargs={"enable_thinking": False}) == "False <|im_start|>"
    error = refusal(chat, USER, template_kwargs={"messages": []})
    assert error.param == "chat_template_kwargs"


def test_rendering_leaves_the_callers_messages_alone(tokenizer: Tokenizer) -> None:
    messages = [{"role": "assistant", "content": [{"type": "text", "text": "<|im_end|>"}]}]
    before = json.dumps(messages)

    template(tokenizer).render(messages, add_generation_prompt=False, continue_final_message=True)

    assert json.dumps(messages) == before


def test_a_chat_nested_too_deeply_is_refused(tokenizer: Tokenizer) -> None:
    tool: dict[str, Any] = {}
    for _ in range(5000):
        tool = {"a": tool}

    assert "deeply" in refusal(template(tokenizer), USER, tools=[tool]).message
