"""The body of ``POST /v1/chat/completions``."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from radixserve.server.protocol.body import INT32_MAX, RequestBody
from radixserve.server.protocol.fields import MAX_LOGPROBS, GenerationFields, parse_fields
from radixserve.server.protocol.refusal import refusal
from radixserve.server.protocol.tools import ToolChoiceField, ToolsField, ToolUse, tool_use_of
from radixserve.server.protocol.unbuilt import CHAT_UNBUILT

MAX_MESSAGES = 8192
_TEMPLATE_FIELDS = {"role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content"}
_MEDIA_PARTS = frozenset({"image_url", "input_audio", "video_url", "audio_url", "file"})


class TextPart(RequestBody):
    """A piece of text in a message's content."""

    type: Literal["text"]
    text: str


class MediaPart(BaseModel):
    """A picture, sound or file; `ChatTemplate` refuses it by its right name."""

    model_config = ConfigDict(extra="ignore")
    type: str


def _branch_of_part(value: Any) -> str:
    """Name the union's branch, for a value on its way in or a part on its way out."""
    if isinstance(value, MediaPart):
        return "<media>"
    kind = value.get("type") if isinstance(value, dict) else None
    return "<media>" if isinstance(kind, str) and kind in _MEDIA_PARTS else "<text>"


def _branch_of_content(value: Any) -> str | None:
    if isinstance(value, str):
        return "<string>"
    return "<parts>" if isinstance(value, list) else None


ContentPart = Annotated[
    Annotated[TextPart, Tag("<text>")] | Annotated[MediaPart, Tag("<media>")],
    Discriminator(_branch_of_part),
]
ContentField = Annotated[
    Annotated[str, Tag("<string>")]
    | Annotated[list[ContentPart], Tag("<parts>"), Field(min_length=1, fail_fast=True)],
    Discriminator(
        _branch_of_content,
        custom_error_type="content_type",
        custom_error_message="Input should be a string or a list of content parts",
    ),
]


class FunctionCall(RequestBody):
    """The function an earlier answer called."""

    name: str
    arguments: str | dict[str, Any] = "{}"


class ToolCall(RequestBody):
    """One call of an earlier answer."""

    id: str = ""
    type: Literal["function"] = "function"
    index: Annotated[int | None, Field(exclude=True)] = None
    """Left over from a streamed call."""
    function: FunctionCall


class ChatMessage(RequestBody):
    """One turn. Fields that OpenAI's own answers carry may come back with the next request."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: ContentField | None = None
    """`ChatTemplate` says where it may be left out."""
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    function_call: None = None
    audio: None = None
    annotations: list[Any] | None = None

    def for_template(self) -> dict[str, Any]:
        """Return the message as `ChatTemplate` takes it.

        A developer's message becomes the system's: templates of open models know no other word
        for it.
        """
        message = self.model_dump(include=_TEMPLATE_FIELDS, exclude_none=True)
        if self.role == "developer":
            message["role"] = "system"
        if self.content is None and self.refusal is not None:
            message["content"] = self.refusal
        if self.reasoning is not None:
            message.setdefault("reasoning_content", self.reasoning)
        return message

    @property
    def text(self) -> str:
        """The content's text."""
        if self.content is None or isinstance(self.content, str):
            return self.content or ""
        return "".join([part.text for part in self.content if isinstance(part, TextPart)])

    @property
    def text_len(self) -> int:
        """Characters of the content."""
        return len(self.text)


class ChatRequest(GenerationFields):
    """One call of ``POST /v1/chat/completions``."""

    messages: Annotated[
        list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)
    ]
    max_tokens: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None
    """The newer name of `max_tokens`. Left out, the answer may fill the rest of the context."""
    add_generation_prompt: bool | None = None
    """Whether the template opens the assistant's turn; true unless a final message goes on."""
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    logprobs: bool = False
    """Tell each token's log-probability."""
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] = 0
    """And those of so many likeliest tokens."""
    tools: ToolsField = Field(default_factory=list)
    tool_choice: ToolChoiceField = "auto"
    parallel_tool_calls: bool = True
    """False: an answer has one call at most."""

    @property
    def num_logprobs(self) -> int | None:
        """Likeliest tokens told beside each token."""
        return self.top_logprobs if self.logprobs else None

    @cached_property
    def tool_use(self) -> ToolUse:
        """What the request says of tools.

        Raises:
            InvalidRequestError: it makes no sense; `parse_chat` has made sure that it does.
        """
        return tool_use_of(
            [tool.function for tool in self.tools],
            self.tool_choice,
            allows_parallel_calls=self.parallel_tool_calls,
        )

    @property
    def asked_tokens(self) -> int | None:
        """Most output tokens the caller asked for, under either name."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def opens_turn(self) -> bool:
        """Whether the prompt ends with the start of the assistant's turn."""
        if self.add_generation_prompt is None:
            return not self.continue_final_message
        return self.add_generation_prompt

    @property
    def text_len(self) -> int:
        """Characters of all that is rendered, about."""
        return sum(message.text_len for message in self.messages) + self.tool_use.text_len

    def template_messages(self) -> list[dict[str, Any]]:
        """Return the messages as `ChatTemplate` takes them."""
        return [message.for_template() for message in self.messages]


def parse_chat(body: Any, *, ignore_unknown: bool = False) -> ChatRequest:
    """Return the typed request; see `parse_fields` for what it raises.

    Raises:
        InvalidRequestError: also where two fields contradict each other.
    """
    parsed = parse_fields(body, ChatRequest, CHAT_UNBUILT, ignore_unknown=ignore_unknown)
    newer = parsed.max_completion_tokens
    if newer is not None and parsed.max_tokens not in (None, newer):
        raise refusal("max_tokens and max_completion_tokens differ; send one.", "max_tokens")
    if parsed.top_logprobs and not parsed.logprobs:
        raise refusal("top_logprobs: only allowed when logprobs is true.", "top_logprobs")
    if parsed.continue_final_message:
        _check_continuation(parsed)
    _ = parsed.tool_use
    return parsed


def _check_continuation(parsed: ChatRequest) -> None:
    if parsed.opens_turn:
        raise refusal(
            "continue_final_message and add_generation_prompt cannot both be true.",
            "continue_final_message",
        )
    if parsed.messages[-1].role != "assistant":
        raise refusal(
            "continue_final_message: the last message must be the assistant's.",
            "continue_final_message",
        )
