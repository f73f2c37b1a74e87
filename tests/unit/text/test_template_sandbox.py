"""What a caller sends is data to a template: it runs no code and makes no template of its own.

The templates here are worse than any that an operator would use: they do with the caller's values
what a template should not do.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from radixserve.errors import InvalidRequestError
from radixserve.text.chat_template import ChatTemplate
from radixserve.text.tokenizer import Tokenizer
from tests.kit.tiny_tokenizer import write_tiny_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

TURNS = [{"role": "user", "content": "hello"}]
CODE = "{{ cycler.__init__.__globals__.os.environ.update(RADIXSERVE_PWNED='1') }}"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_folder(write_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")))


def render(tokenizer: Tokenizer, source: str, **given: Any) -> str:
    template = ChatTemplate({"default": source}, tokenizer)
    return template.render(TURNS, template_kwargs=given)


@pytest.mark.parametrize(
    ("source", "given"),
    [
        ("{{ a.__class__.__mro__ }}", {"a": "x"}),
        ("{{ a['__class__'].__base__ }}", {"a": "x"}),
        ("{{ (a | attr('__class__')).__subclasses__() }}", {"a": "x"}),
        ("{{ messages[0][a].x }}", {"a": "__class__"}),
        ("{{ a.format(messages) }}", {"a": "{0.__class__.__init__.__globals__}"}),
        ("{{ raise_exception.__globals__.json }}", {}),
        ("{{ strftime_now.__globals__['json'] }}", {}),
        ("{{ strftime_now(a) }}", {"a": 7}),
        ("{% for i in range(a) %}x{% endfor %}", {"a": 10**9}),
        ("{{ messages.append(a) }}", {"a": 1}),
        ("{{ a() }}", {"a": "os.system"}),
        ("{% include a %}", {"a": "/etc/passwd"}),
        ("{% import a as b %}", {"a": "os"}),
        (CODE, {}),
    ],
)
def test_what_reaches_for_more_than_data_refuses_the_chat(
    source: str, given: dict[str, Any], tokenizer: Tokenizer
) -> None:
    with pytest.raises(InvalidRequestError):
        render(tokenizer, source, **given)
    assert "RADIXSERVE_PWNED" not in os.environ


@pytest.mark.parametrize(
    ("source", "given"),
    [
        ("[{{ a.format_map(messages[0]) }}]", {"a": "{role.__class__}"}),
        ("[{{ raise_exception.__globals__ }}]", {}),
        ("[{{ a.__class__ }}]", {"a": "x"}),
    ],
)
def test_what_is_private_is_not_shown(
    source: str, given: dict[str, Any], tokenizer: Tokenizer
) -> None:
    assert render(tokenizer, source, **given) == "[]"


@pytest.mark.parametrize("text", ["{{ 7 * 7 }}", "{% raw %}", CODE, "{0.__class__}", "%(a)s"])
def test_a_callers_text_is_never_a_template(text: str, tokenizer: Tokenizer) -> None:
    assert render(tokenizer, "{{ a }}", a=text) == text
    template = ChatTemplate({"default": "{{ messages[0].content }}"}, tokenizer)
    assert template.render([{"role": "user", "content": text}]) == text
    assert "RADIXSERVE_PWNED" not in os.environ


@pytest.mark.parametrize(
    "name", ["raise_exception", "strftime_now", "range", "bos_token", "tojson"]
)
def test_a_callers_value_that_takes_a_builtins_name_is_still_data(
    name: str, tokenizer: Tokenizer
) -> None:
    assert render(tokenizer, f"{{{{ {name} }}}}", **{name: "mine"}) == "mine"
    # The next chat sees the builtin again.
    assert render(tokenizer, "{% for i in range(2) %}x{% endfor %}") == "xx"


def test_a_folder_cannot_be_left_through_a_template(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "secret.jinja").write_text("secret")
    with pytest.raises(InvalidRequestError) as refused:
        render(tokenizer, "{% extends a %}", a=str(tmp_path / "secret.jinja"))
    assert "secret" not in str(refused.value).replace("secret.jinja", "")
