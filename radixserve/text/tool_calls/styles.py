"""The ways in which models write tool calls, and which of them a model uses."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from radixserve.errors import ConfigError
from radixserve.text.tool_calls.hermes import HermesParser
from radixserve.text.tool_calls.llama import LlamaParser
from radixserve.text.tool_calls.mistral import MistralParser

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from radixserve.text.tool_calls.call_parser import ToolCallParser


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallStyle:
    """One way to write calls.

    A grammar that forces calls joins these pieces, with arguments that each function's schema
    describes; special tokens that they name are those tokens:

        first  before_name NAME before_arguments ARGUMENTS after  between  ...  last

    Attributes:
        name: What `find_parser` calls it.
        marks: What in a chat template's source tells that the model writes calls in this way.
        make_parser: Makes the parser of one answer.
        make_id: Makes a call's id as the models' templates take it back.
        trigger: What begins calls in free text; "" where nothing marks them.
        needs_special_tokens: The text to be parsed must be made with its special tokens.
    """

    name: str
    marks: tuple[str, ...]
    make_parser: Callable[[frozenset[str] | None, Callable[[], str]], ToolCallParser]
    make_id: Callable[[], str]
    trigger: str = ""
    first: str = ""
    before_name: str
    before_arguments: str
    after: str = ""
    between: str = ""
    last: str = ""
    needs_special_tokens: bool = False

    def parser(self, names: Iterable[str]) -> ToolCallParser:
        """Return a parser for one answer.

        Args:
            names: The functions that may be called. Calls with an opening mark may also be of
                others, which a model has made up: that is for the caller to see.
        """
        known = None if self.trigger else frozenset(names)
        return self.make_parser(known, self.make_id)


def _new_id() -> str:
    """An id as OpenAI's: `call_` and 24 hexadecimal digits."""
    return f"call_{secrets.token_hex(12)}"


def _new_short_id() -> str:
    """Mistral's templates refuse ids that are not nine letters and digits."""
    return secrets.token_hex(5)[:9]


HERMES = ToolCallStyle(
    name="hermes",
    marks=("<tool_call>",),
    make_parser=HermesParser,
    make_id=_new_id,
    trigger="<tool_call>",
    before_name='<tool_call>\n{"name": "',
    before_arguments='", "arguments": ',
    after="}\n</tool_call>",
    between="\n",
)
LLAMA3 = ToolCallStyle(
    name="llama3",
    marks=("<|python_tag|>", '"parameters": dictionary of argument'),
    make_parser=LlamaParser,
    make_id=_new_id,
    before_name='{"name": "',
    before_arguments='", "parameters": ',
    after="}",
    between="; ",
)
MISTRAL = ToolCallStyle(
    name="mistral",
    marks=("[TOOL_CALLS]",),
    make_parser=MistralParser,
    make_id=_new_short_id,
    trigger="[TOOL_CALLS]",
    first="[TOOL_CALLS][",
    before_name='{"name": "',
    before_arguments='", "arguments": ',
    after="}",
    between=", ",
    last="]",
    needs_special_tokens=True,
)
MISTRAL_ARGS = replace(
    MISTRAL,
    name="mistral-args",
    marks=("[ARGS]",),
    first="",
    before_name="[TOOL_CALLS]",
    before_arguments="[ARGS]",
    after="",
    between="",
    last="",
)
STYLES = (HERMES, MISTRAL_ARGS, MISTRAL, LLAMA3)


def find_parser(name: str) -> ToolCallStyle:
    """Return the style of that name: hermes, llama3, mistral or mistral-args.

    Raises:
        ConfigError: there is none.
    """
    for style in STYLES:
        if style.name == name:
            return style
    known = ", ".join(style.name for style in STYLES)
    raise ConfigError(f"tool_call_parser: {name!r} is unknown; there are {known}.")


def detect_parser(template_source: str) -> ToolCallStyle:
    """Return the style that a chat template shows its model.

    A template without any known mark gets Hermes: it is what `tool_prompt` asks of models whose
    template knows no tools.
    """
    for style in STYLES:
        if any(mark in template_source for mark in style.marks):
            return style
    return HERMES


def mentions_tools(template_source: str) -> bool:
    """Whether a chat template does something with the variable `tools`."""
    return re.search(r"\btools\b", template_source) is not None


def mentions_calls(template_source: str) -> bool:
    """Whether a chat template does something with the calls of earlier turns."""
    return "tool_calls" in template_source
