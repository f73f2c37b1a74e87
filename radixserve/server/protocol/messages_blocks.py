"""The blocks that the content of Anthropic's messages is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from radixserve.errors import UnsupportedFeatureError
from radixserve.server.protocol.body import RequestBody
from radixserve.server.protocol.refusal import refusal

if TYPE_CHECKING:
    from collections.abc import Sequence

_KNOWN = frozenset({"text", "thinking", "redacted_thinking", "tool_use", "tool_result"})
_ROLES = {"tool_use": "assistant", "tool_result": "user", "thinking": "assistant"}
"""Blocks that only messages of one role may have."""


class CacheControl(RequestBody):
    """A breakpoint: the prompt up to here will be sent again."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] = "5m"

    @property
    def hold_s(self) -> float:
        """Seconds to keep it for."""
        return 3600.0 if self.ttl == "1h" else 300.0


class TextBlock(RequestBody):
    """Some text."""

    type: Literal["text"]
    text: str
    cache_control: CacheControl | None = None
    citations: list[Any] | None = None
    """Left over from an answer; unused."""

    @property
    def text_len(self) -> int:
        """Characters."""
        return len(self.text)

    def marked(self, mark: str) -> TextBlock:
        """Return a block that differs from this one at its end."""
        return self.model_copy(update={"text": self.text + mark})


class ThinkingBlock(RequestBody):
    """What the model thought in an earlier turn."""

    type: Literal["thinking"]
    thinking: str
    signature: str = ""
    cache_control: ClassVar[None] = None

    @property
    def text_len(self) -> int:
        """Characters."""
        return len(self.thinking)


class RedactedThinkingBlock(RequestBody):
    """Thoughts of another server's model, which nobody here can read: left out."""

    type: Literal["redacted_thinking"]
    data: str
    cache_control: ClassVar[None] = None
    text_len: ClassVar[int] = 0


class ToolUseBlock(RequestBody):
    """A call that the model made in an earlier turn."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    cache_control: CacheControl | None = None
    caller: dict[str, Any] | None = None
    """Left over from an answer; unused, like the next."""
    toolset_name: str | None = None

    @property
    def text_len(self) -> int:
        """Characters, about."""
        return len(self.name) + len(str(self.input))

    def marked(self, mark: str) -> ToolUseBlock:
        """Return a block that differs from this one at its end."""
        return self.model_copy(update={"input": {**self.input, mark: mark}})


class MediaBlock(BaseModel):
    """What is neither text nor a call; `check_block_kinds` refuses it by its right name."""

    model_config = ConfigDict(extra="ignore")
    type: str
    cache_control: ClassVar[None] = None
    text_len: ClassVar[int] = 0


def _branch_of_block(value: Any) -> str:
    """Name the union's branch, for a value on its way in or a block on its way out."""
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    if not isinstance(kind, str):
        return "<text>"
    return f"<{kind}>" if kind in _KNOWN else "<media>"


def _branch_of_result(value: Any) -> str:
    branch = _branch_of_block(value)
    return branch if branch == "<text>" else "<media>"


def _branch_of_results(value: Any) -> str | None:
    if isinstance(value, str):
        return "<string>"
    return "<blocks>" if isinstance(value, list) else None


ResultPart = Annotated[
    Annotated[TextBlock, Tag("<text>")] | Annotated[MediaBlock, Tag("<media>")],
    Discriminator(_branch_of_result),
]
ResultField = Annotated[
    Annotated[str, Tag("<string>")]
    | Annotated[list[ResultPart], Tag("<blocks>"), Field(fail_fast=True)],
    Discriminator(
        _branch_of_results,
        custom_error_type="content_type",
        custom_error_message="Input should be a string or a list of content blocks",
    ),
]


class ToolResultBlock(RequestBody):
    """What came of a call."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: ResultField | None = None
    is_error: bool = False
    cache_control: CacheControl | None = None
    toolset_name: str | None = None
    """Left over from an answer; unused."""

    @property
    def text(self) -> str:
        """The result as the model reads it."""
        if self.content is None or isinstance(self.content, str):
            text = self.content or ""
        else:
            text = "".join(part.text for part in self.content if isinstance(part, TextBlock))
        return f"Error: {text}" if self.is_error else text

    @property
    def text_len(self) -> int:
        """Characters."""
        return len(self.text)

    def marked(self, mark: str) -> ToolResultBlock:
        """Return a block that differs from this one at its end."""
        if isinstance(self.content, list):
            more = TextBlock(type="text", text=mark)
            return self.model_copy(update={"content": [*self.content, more]})
        return self.model_copy(update={"content": (self.content or "") + mark})


Block = Annotated[
    Annotated[TextBlock, Tag("<text>")]
    | Annotated[ThinkingBlock, Tag("<thinking>")]
    | Annotated[RedactedThinkingBlock, Tag("<redacted_thinking>")]
    | Annotated[ToolUseBlock, Tag("<tool_use>")]
    | Annotated[ToolResultBlock, Tag("<tool_result>")]
    | Annotated[MediaBlock, Tag("<media>")],
    Discriminator(_branch_of_block),
]


def check_block_kinds(blocks: Sequence[Block], role: str, where: str) -> None:
    """Accept blocks that can be read, each in a message of the right role.

    Raises:
        UnsupportedFeatureError: a block is a picture, a document or the like.
        InvalidRequestError: a block is in a message of another role.
    """
    for index, block in enumerate(blocks):
        inner = block.content if isinstance(block, ToolResultBlock) else None
        parts = inner if isinstance(inner, list) else []
        for part in (block, *parts):
            if isinstance(part, MediaBlock):
                raise UnsupportedFeatureError(
                    f"{where}[{index}] has a block of type {part.type[:64]!r}; this server reads "
                    "only text, tool_use, tool_result and thinking.",
                    param=f"{where}[{index}]",
                )
        if _ROLES.get(block.type, role) != role:
            raise refusal(
                f"{where}[{index}]: a block of type {block.type!r} cannot be in a message of role "
                f"{role!r}.",
                f"{where}[{index}].type",
            )
