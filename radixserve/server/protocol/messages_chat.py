"""Anthropic's messages in the words of the chat endpoint, which knows what to do with them.

system                       a first message of role system
user: text, tool_result      messages of role user, and of role tool, in this order
assistant: text, tool_use    one message with tool_calls
assistant at the end         a message to be continued
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from radixserve.server.protocol.chat import parse_chat
from radixserve.server.protocol.messages_blocks import (
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve.server.protocol.chat import ChatRequest
    from radixserve.server.protocol.messages import (
        Message,
        MessagesPrompt,
        MessagesRequest,
        Tool,
        ToolChoice,
    )
    from radixserve.server.protocol.messages_blocks import Block

_SAMPLING = ("temperature", "top_k", "top_p", "seed", "stream", "priority")
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def chat_of_prompt(prompt: MessagesPrompt) -> ChatRequest:
    """Return the chat that has the same prompt.

    Raises:
        InvalidRequestError: what the messages say together makes no chat.
    """
    return parse_chat(_prompt_json(prompt))


def chat_of(fields: MessagesRequest) -> ChatRequest:
    """Return the chat that asks for the same; `max_tokens` is left to the caller.

    Raises:
        InvalidRequestError: what the messages say together makes no chat.
    """
    body = _prompt_json(fields)
    body |= {name: getattr(fields, name) for name in _SAMPLING}
    body |= {
        "stop": fields.stop_sequences,
        "user": fields.metadata.user_id,
        "cache_salt": fields.cache_salt,
        "timeout_s": fields.timeout_s,
        "radix": fields.radix.model_dump(),
    }
    return parse_chat(body)


def _prompt_json(prompt: MessagesPrompt) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": prompt.model,
        "messages": [
            *_system_json(prompt.system_blocks),
            *(each for message in prompt.messages for each in _message_json(message)),
        ],
        "continue_final_message": prompt.is_continuation,
        "chat_template_kwargs": _template_kwargs(prompt),
    }
    if prompt.tools:
        body["tools"] = [_tool_json(tool) for tool in prompt.tools]
    if prompt.tool_choice is not None and prompt.tools:
        body |= _choice_json(prompt.tool_choice)
    if prompt.output_config is not None and prompt.output_config.format is not None:
        schema = {"name": "output", "schema": prompt.output_config.format.schema_, "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    return body


def _template_kwargs(prompt: MessagesPrompt) -> dict[str, Any]:
    """Thinking that is switched off is switched off where the template knows the switch."""
    given = prompt.chat_template_kwargs
    return given if prompt.thinking is None else {"enable_thinking": False, **given}


def _system_json(blocks: Sequence[TextBlock]) -> list[dict[str, Any]]:
    return [{"role": "system", "content": _parts(blocks)}] if blocks else []


def _message_json(message: Message) -> list[dict[str, Any]]:
    if message.role == "assistant":
        return [_assistant_json(message.blocks)]
    result: list[dict[str, Any]] = []
    texts: list[TextBlock] = []
    for block in message.blocks:
        if isinstance(block, TextBlock):
            texts.append(block)
        elif isinstance(block, ToolResultBlock):
            result += _texts_json(message.role, texts)
            texts = []
            result.append(
                {"role": "tool", "tool_call_id": block.tool_use_id, "content": block.text}
            )
    return result + _texts_json(message.role, texts, is_all=not result)


def _texts_json(
    role: str, texts: Sequence[TextBlock], *, is_all: bool = False
) -> list[dict[str, Any]]:
    """Return a message of texts; none without any, unless that leaves nothing of the turn."""
    if not texts and not is_all:
        return []
    return [{"role": role, "content": _parts(texts) or ""}]


def _assistant_json(blocks: Sequence[Block]) -> dict[str, Any]:
    calls = [_call_json(block) for block in blocks if isinstance(block, ToolUseBlock)]
    thoughts = "".join(block.thinking for block in blocks if isinstance(block, ThinkingBlock))
    texts = [block for block in blocks if isinstance(block, TextBlock)]
    message: dict[str, Any] = {"role": "assistant", "content": _parts(texts) or ""}
    if calls:
        message["tool_calls"] = calls
    if thoughts:
        message["reasoning_content"] = thoughts
    return message


def _parts(blocks: Sequence[TextBlock]) -> list[dict[str, Any]]:
    return [{"type": "text", "text": block.text} for block in blocks]


def _call_json(block: ToolUseBlock) -> dict[str, Any]:
    function = {"name": block.name, "arguments": block.input}
    return {"id": block.id, "type": "function", "function": function}


def _tool_json(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name, "parameters": tool.input_schema}
    if tool.description:
        function["description"] = tool.description
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _choice_json(choice: ToolChoice) -> dict[str, Any]:
    named = {"type": "function", "function": {"name": choice.name}}
    return {
        "tool_choice": _CHOICES.get(choice.type, named),
        "parallel_tool_calls": not choice.disable_parallel_tool_use,
    }
