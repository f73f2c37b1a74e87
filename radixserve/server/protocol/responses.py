"""The body of ``POST /v1/responses``. Nothing is stored: each call brings its whole input.

Source: platform.openai.com/docs/api-reference/responses.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from radixserve.errors import UnsupportedFeatureError
from radixserve.server.protocol.body import INT32_MAX, RequestBody
from radixserve.server.protocol.fields import parse_body
from radixserve.server.protocol.hints import RadixHints
from radixserve.server.protocol.refusal import refusal
from radixserve.server.protocol.responses_items import (
    Item,
    MessageItem,
    check_items,
    content_of,
    text_of,
)
from radixserve.server.protocol.unbuilt import Unbuilt

MAX_ITEMS = 8192
_IGNORED_INCLUDES = frozenset({"reasoning.encrypted_content"})
"""Ask for what no answer of this server has."""

RESPONSES_UNBUILT = {
    "background": Unbuilt(neutral=(False,)),
    "conversation": Unbuilt(),
    "context_management": Unbuilt(),
    "image": Unbuilt(),
    "max_tool_calls": Unbuilt(),
    "moderation": Unbuilt(),
    "prompt": Unbuilt(),
    "top_logprobs": Unbuilt(neutral=(0,), bounds=(0, 20)),
    "truncation": Unbuilt(neutral=("disabled",)),
}


def _branch_of_input(value: Any) -> str | None:
    if isinstance(value, str):
        return "<string>"
    return "<items>" if isinstance(value, list) else None


InputField = Annotated[
    Annotated[str, Tag("<string>")]
    | Annotated[
        list[Item], Tag("<items>"), Field(min_length=1, max_length=MAX_ITEMS, fail_fast=True)
    ],
    Discriminator(
        _branch_of_input,
        custom_error_type="input_type",
        custom_error_message="Input should be a string or a list of input items",
    ),
]


class FunctionTool(RequestBody):
    """A function that the model may call."""

    type: str
    name: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class NamedChoice(RequestBody):
    """The one function that must be called."""

    type: str
    name: str | None = None


def _branch_of_choice(value: Any) -> str:
    return "<object>" if isinstance(value, dict | NamedChoice) else "<string>"


ChoiceField = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("<string>")]
    | Annotated[NamedChoice, Tag("<object>")],
    Discriminator(_branch_of_choice),
]


class TextFormat(RequestBody):
    """What the text has to look like."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    description: str | None = None
    strict: bool | None = None


class TextConfig(RequestBody):
    """How the text is written."""

    format: TextFormat | None = None
    verbosity: str | None = None
    """Accepted and unused."""


class ResponseStreamOptions(RequestBody):
    """What a stream tells besides its text."""

    include_obfuscation: bool = False
    """Accepted and unused: it pads events against observers of their length."""


class ResponsesRequest(RequestBody):
    """One call of ``POST /v1/responses``."""

    model: str | None = None
    """The served model when left out."""
    input: InputField
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None
    """The answer may fill the rest of the context when left out."""
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    text: TextConfig = Field(default_factory=TextConfig)
    tools: list[FunctionTool] = Field(default_factory=list)
    tool_choice: ChoiceField = "auto"
    parallel_tool_calls: bool = True
    stream: bool = False
    stream_options: ResponseStreamOptions | None = None
    store: bool = True
    """Accepted; nothing is stored, and the answer says so."""
    previous_response_id: str | None = None
    metadata: dict[str, str] = Field(default_factory=dict)
    """Comes back with the answer."""
    include: list[str] = Field(default_factory=list)
    reasoning: dict[str, Any] | None = None
    """Accepted and unused: it hints at a style."""
    user: Annotated[str, Field(max_length=1024)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=INT32_MAX)] = 0
    """This server's own, like all below; see `fields.GenerationFields`."""
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    priority: Annotated[int, Field(ge=-INT32_MAX, le=INT32_MAX)] = 0
    cache_salt: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    timeout_s: Annotated[float, Field(gt=0, le=86_400)] | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    radix: RadixHints = Field(default_factory=RadixHints)

    @property
    def items(self) -> list[Item]:
        """The input as items, whichever way it was written."""
        if isinstance(self.input, str):
            return [MessageItem(role="user", content=self.input)]
        return self.input

    @property
    def text_len(self) -> int:
        """Characters of all texts, about."""
        texts = sum(len(text_of(content_of(item))) for item in self.items)
        return texts + len(self.instructions or "")


def parse_responses(body: Any, *, ignore_unknown: bool = False) -> ResponsesRequest:
    """Return the typed request; see `parse_body` for what it raises.

    Raises:
        InvalidRequestError: also where two fields contradict each other.
        UnsupportedFeatureError: also for stored state, media and hosted tools.
    """
    parsed = parse_body(body, ResponsesRequest, RESPONSES_UNBUILT, ignore_unknown=ignore_unknown)
    if parsed.previous_response_id is not None:
        raise UnsupportedFeatureError(
            "previous_response_id: this server stores no responses; send the whole input again.",
            param="previous_response_id",
        )
    if parsed.stream_options is not None and not parsed.stream:
        raise refusal("stream_options: only allowed when stream is true.", "stream_options")
    check_items(parsed.items, "input")
    _check_tools(parsed)
    _check_includes(parsed.include)
    return parsed


def _check_tools(parsed: ResponsesRequest) -> None:
    for index, tool in enumerate(parsed.tools):
        if tool.type != "function" or tool.name is None:
            raise UnsupportedFeatureError(
                f"tools[{index}]: this server runs no tools of its own, such as "
                f"{tool.type[:64]!r}; describe a function with its name.",
                param=f"tools[{index}].type",
            )
    choice = parsed.tool_choice
    if isinstance(choice, NamedChoice) and choice.type != "function":
        raise UnsupportedFeatureError(
            f"tool_choice: this server does not support the type {choice.type[:64]!r}.",
            param="tool_choice.type",
        )


def _check_includes(include: list[str]) -> None:
    for index, name in enumerate(include):
        if name not in _IGNORED_INCLUDES:
            raise UnsupportedFeatureError(
                f"include[{index}]: this server cannot include {name[:64]!r}.",
                param=f"include[{index}]",
            )
