"""The items that the input of the Responses API is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from radixserve.errors import UnsupportedFeatureError
from radixserve.server.protocol.body import RequestBody

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_TEXT_PARTS = frozenset({"input_text", "output_text", "text"})
_KNOWN = frozenset({"message", "function_call", "function_call_output", "reasoning"})


class TextPart(RequestBody):
    """A piece of text, the caller's or the model's."""

    type: Literal["input_text", "output_text", "text"]
    text: str
    annotations: list[Any] | None = None
    """Left over from an answer; unused, like the next."""
    logprobs: list[Any] | None = None


class RefusalPart(RequestBody):
    """Text in which an earlier answer refused."""

    type: Literal["refusal"]
    refusal: str


class OtherPart(BaseModel):
    """A picture, sound or file; `check_items` refuses it by its right name."""

    model_config = ConfigDict(extra="ignore")
    type: str


def _kind_of(value: Any) -> str:
    """Return the `type` of a value on its way in or of an item on its way out."""
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return kind if isinstance(kind, str) else ""


def _branch_of_part(value: Any) -> str:
    kind = _kind_of(value)
    if kind in _TEXT_PARTS or not kind:
        return "<text>"
    return "<refusal>" if kind == "refusal" else "<other>"


def _branch_of_content(value: Any) -> str | None:
    if isinstance(value, str):
        return "<string>"
    return "<parts>" if isinstance(value, list) else None


Part = Annotated[
    Annotated[TextPart, Tag("<text>")]
    | Annotated[RefusalPart, Tag("<refusal>")]
    | Annotated[OtherPart, Tag("<other>")],
    Discriminator(_branch_of_part),
]
ContentField = Annotated[
    Annotated[str, Tag("<string>")] | Annotated[list[Part], Tag("<parts>"), Field(fail_fast=True)],
    Discriminator(
        _branch_of_content,
        custom_error_type="content_type",
        custom_error_message="Input should be a string or a list of content parts",
    ),
]


class MessageItem(RequestBody):
    """One turn, or a message of an earlier answer."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: ContentField
    id: str | None = None
    """Left over from an answer; unused, like the two below."""
    status: str | None = None
    phase: str | None = None


class CallItem(RequestBody):
    """A call that an earlier answer made."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: str | None = None
    namespace: str | None = None
    caller: dict[str, Any] | None = None


class CallOutputItem(RequestBody):
    """What came of a call."""

    type: Literal["function_call_output"]
    call_id: str
    output: ContentField
    id: str | None = None
    status: str | None = None


class ReasoningItem(RequestBody):
    """What the model thought before an earlier answer."""

    type: Literal["reasoning"]
    id: str | None = None
    summary: list[dict[str, Any]] = Field(default_factory=list)
    content: list[dict[str, Any]] | None = None
    encrypted_content: str | None = None
    status: str | None = None

    @property
    def text(self) -> str:
        """The thoughts, as far as they are readable."""
        texts = (part.get("text") for part in self.content or [])
        return "".join(text for text in texts if isinstance(text, str))


class OtherItem(BaseModel):
    """What belongs to a feature that is not built; `check_items` refuses it by its right name."""

    model_config = ConfigDict(extra="ignore")
    type: str


def _branch_of_item(value: Any) -> str:
    kind = _kind_of(value)
    if not kind:
        return "<message>"
    return f"<{kind}>" if kind in _KNOWN else "<other>"


Item = Annotated[
    Annotated[MessageItem, Tag("<message>")]
    | Annotated[CallItem, Tag("<function_call>")]
    | Annotated[CallOutputItem, Tag("<function_call_output>")]
    | Annotated[ReasoningItem, Tag("<reasoning>")]
    | Annotated[OtherItem, Tag("<other>")],
    Discriminator(_branch_of_item),
]


def content_of(item: Item) -> str | list[Part]:
    """Return an item's content; empty where it has none."""
    if isinstance(item, MessageItem):
        return item.content
    return item.output if isinstance(item, CallOutputItem) else ""


def text_of(content: str | list[Part]) -> str:
    """Return the text of a content, its parts joined without a separator."""
    return content if isinstance(content, str) else "".join(_texts(content))


def _texts(parts: Sequence[Part]) -> Iterator[str]:
    for part in parts:
        if isinstance(part, TextPart):
            yield part.text
        elif isinstance(part, RefusalPart):
            yield part.refusal


def check_items(items: Sequence[Item], where: str) -> None:
    """Accept items that can be read.

    Raises:
        UnsupportedFeatureError: an item or a part is of another kind; names it.
    """
    for index, item in enumerate(items):
        if isinstance(item, OtherItem):
            raise _unsupported(item.type, f"{where}[{index}]")
        content = content_of(item)
        for place, part in enumerate([] if isinstance(content, str) else content):
            if isinstance(part, OtherPart):
                field = "output" if isinstance(item, CallOutputItem) else "content"
                raise _unsupported(part.type, f"{where}[{index}].{field}[{place}]")


def _unsupported(kind: str, where: str) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(
        f"{where} is of type {kind[:64]!r}, which this server does not support.", param=where
    )
