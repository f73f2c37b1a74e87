"""The body of ``POST /v1/messages`` and of ``POST /v1/messages/count_tokens``.

Source: docs.anthropic.com/en/api/messages.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from radixserve.errors import UnsupportedFeatureError
from radixserve.server.protocol.body import INT32_MAX, RequestBody
from radixserve.server.protocol.fields import MAX_STOP_STRINGS, StopString, parse_body
from radixserve.server.protocol.hints import RadixHints
from radixserve.server.protocol.messages_blocks import (
    Block,
    CacheControl,
    TextBlock,
    check_block_kinds,
)
from radixserve.server.protocol.refusal import refusal
from radixserve.server.protocol.unbuilt import Unbuilt

MAX_MESSAGES = 100_000
MESSAGES_UNBUILT = {name: Unbuilt() for name in ("container", "context_management", "mcp_servers")}


def _branch_of_content(value: Any) -> str | None:
    if isinstance(value, str):
        return "<string>"
    return "<blocks>" if isinstance(value, list) else None


_CONTENT = Discriminator(
    _branch_of_content,
    custom_error_type="content_type",
    custom_error_message="Input should be a string or a list of content blocks",
)
SystemField = Annotated[
    Annotated[str, Tag("<string>")]
    | Annotated[list[TextBlock], Tag("<blocks>"), Field(fail_fast=True)],
    _CONTENT,
]
ContentField = Annotated[
    Annotated[str, Tag("<string>")]
    | Annotated[list[Block], Tag("<blocks>"), Field(fail_fast=True)],
    _CONTENT,
]


class Message(RequestBody):
    """One turn."""

    role: Literal["user", "assistant", "system"]
    content: ContentField

    @property
    def blocks(self) -> list[Block]:
        """The content as blocks, whichever way it was written."""
        if isinstance(self.content, str):
            return [TextBlock(type="text", text=self.content)]
        return self.content


class Tool(RequestBody):
    """A function that the model may call."""

    name: Annotated[str, Field(min_length=1, max_length=128)]
    input_schema: dict[str, Any]
    description: str = ""
    type: str | None = None
    strict: bool | None = None
    cache_control: CacheControl | None = None
    input_examples: list[dict[str, Any]] | None = None
    """Accepted and unused, like the two below."""
    eager_input_streaming: bool | None = None
    allowed_callers: list[str] | None = None
    defer_loading: Literal[False] | None = None


class ToolChoice(RequestBody):
    """Which tools have to be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class Metadata(RequestBody):
    """Who asks, by the caller's own books."""

    user_id: Annotated[str, Field(max_length=1024)] | None = None


class OutputFormat(RequestBody):
    """What the text of the answer has to look like."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(RequestBody):
    """How the answer is written."""

    format: OutputFormat | None = None
    effort: str | None = None
    """Accepted and unused."""


class MessagesPrompt(RequestBody):
    """What the model reads: everything that counts as input."""

    model: str | None = None
    """The served model when left out."""
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    system: SystemField | None = None
    tools: list[Tool] = Field(default_factory=list)
    tool_choice: ToolChoice | None = None
    thinking: dict[str, Any] | None = None
    output_config: OutputConfig | None = None
    cache_control: CacheControl | None = None
    """A breakpoint after the last block."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)

    @property
    def system_blocks(self) -> list[TextBlock]:
        """The system prompt as blocks, whichever way it was written."""
        if isinstance(self.system, str):
            return [TextBlock(type="text", text=self.system)]
        return self.system or []

    @property
    def is_continuation(self) -> bool:
        """Whether the last message is the beginning of the answer."""
        return self.messages[-1].role == "assistant"

    @property
    def text_len(self) -> int:
        """Characters of all texts, about."""
        blocks = [block for message in self.messages for block in message.blocks]
        return sum(block.text_len for block in (*self.system_blocks, *blocks))


class MessagesRequest(MessagesPrompt):
    """One call of ``POST /v1/messages``."""

    max_tokens: Annotated[int, Field(ge=1, le=INT32_MAX)]
    """Less is produced where the context ends before."""
    stream: bool = False
    stop_sequences: Annotated[
        list[StopString], Field(max_length=MAX_STOP_STRINGS, fail_fast=True)
    ] = Field(default_factory=list)
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_k: Annotated[int, Field(ge=-1, le=INT32_MAX)] = 0
    """0 and -1 are off."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    metadata: Metadata = Field(default_factory=Metadata)
    speed: Literal["standard"] = "standard"
    inference_geo: str | None = None
    """Accepted and unused, like the two below: they describe the caller's account."""
    user_profile_id: str | None = None
    workspace_id: str | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    """This server's own, like all below; see `fields.GenerationFields`."""
    priority: Annotated[int, Field(ge=-INT32_MAX, le=INT32_MAX)] = 0
    cache_salt: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    timeout_s: Annotated[float, Field(gt=0, le=86_400)] | None = None
    radix: RadixHints = Field(default_factory=RadixHints)


def parse_messages(body: Any, *, ignore_unknown: bool = False) -> MessagesRequest:
    """Return the typed request; see `parse_body` for what it raises.

    Raises:
        InvalidRequestError: also where two fields contradict each other.
        UnsupportedFeatureError: also for media, server tools and thinking.
    """
    parsed = parse_body(body, MessagesRequest, MESSAGES_UNBUILT, ignore_unknown=ignore_unknown)
    _check(parsed)
    return parsed


def parse_count(body: Any, *, ignore_unknown: bool = False) -> MessagesPrompt:
    """Return the typed request of ``count_tokens``; raises what `parse_messages` does."""
    parsed = parse_body(body, MessagesPrompt, MESSAGES_UNBUILT, ignore_unknown=ignore_unknown)
    _check(parsed)
    return parsed


def _check(parsed: MessagesPrompt) -> None:
    _check_thinking(parsed.thinking)
    for index, tool in enumerate(parsed.tools):
        if tool.type not in (None, "custom"):
            raise UnsupportedFeatureError(
                f"tools[{index}].type: this server runs no tools of its own, such as "
                f"{tool.type[:64]!r}; describe the tool with a name and an input_schema.",
                param=f"tools[{index}].type",
            )
    _check_choice(parsed)
    for index, message in enumerate(parsed.messages):
        if not isinstance(message.content, str):
            check_block_kinds(message.content, message.role, f"messages[{index}].content")


def _check_thinking(thinking: dict[str, Any] | None) -> None:
    kind = "disabled" if thinking is None else thinking.get("type")
    if kind != "disabled":
        raise UnsupportedFeatureError(
            "thinking: this server does not support this parameter yet; leave it out or send "
            '{"type": "disabled"}.',
            param="thinking",
        )


def _check_choice(parsed: MessagesPrompt) -> None:
    choice = parsed.tool_choice
    if choice is None or choice.type in ("auto", "none"):
        return
    if not parsed.tools:
        raise refusal(f"tool_choice: {choice.type!r} needs tools.", "tool_choice")
    if choice.type == "tool" and choice.name not in {tool.name for tool in parsed.tools}:
        raise refusal(
            f"tool_choice.name: there is no tool {str(choice.name)[:128]!r}.", "tool_choice.name"
        )
