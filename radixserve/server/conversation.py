"""From a chat to what the engine runs for it: shared by every route that holds a conversation."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from radixserve.server.generation import Prompt, generate_requests_for, off_the_loop
from radixserve.server.protocol.refusal import refusal
from radixserve.server.protocol.tool_grammar import grammar_with_tools
from radixserve.server.protocol.tools import answer_format

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve.engine.async_engine import AsyncEngine
    from radixserve.engine.request import GenerateRequest
    from radixserve.server.protocol.chat import ChatRequest
    from radixserve.text.answer_reader import AnswerFormat
    from radixserve.text.chat_template import ChatTemplate
    from radixserve.types import Grammar


@dataclass(frozen=True, slots=True)
class Conversation:
    """A chat, ready to be answered.

    Attributes:
        requests: One for each answer.
        format: How their text is read.
    """

    requests: Sequence[GenerateRequest]
    format: AnswerFormat


async def prompt_ids_of(fields: ChatRequest, template: ChatTemplate) -> list[int]:
    """Return the token ids of the rendered conversation.

    Raises:
        InvalidRequestError: there is no template, or it refuses these messages.
    """
    return await off_the_loop(fields.text_len, lambda: encode_chat(fields, template))


def encode_chat(fields: ChatRequest, template: ChatTemplate) -> list[int]:
    """Do what `prompt_ids_of` does, on the caller's own time."""
    return template.encode(
        fields.template_messages(),
        add_generation_prompt=fields.opens_turn,
        continue_final_message=fields.continue_final_message,
        tools=fields.tool_use.for_template(),
        template_kwargs=fields.chat_template_kwargs,
    )


async def conversation_of(
    fields: ChatRequest,
    ids: Sequence[int],
    engine: AsyncEngine,
    *,
    answer_id: str,
    param: str,
    asked_tokens: int | None,
    default_tokens: int | None,
) -> Conversation:
    """Return what the engine runs for a chat.

    Args:
        ids: Of the rendered conversation.
        param: The field that holds it.
        asked_tokens: Output tokens the caller asked for; see `generate_requests_for`.
        default_tokens: Output tokens when nothing was asked for.
    Raises:
        InvalidRequestError, PromptTooLongError: what `generate_requests_for` raises.
        UnsupportedGrammarError: what the answers must look like cannot be enforced.
    """
    begun_with = fields.messages[-1].text if fields.continue_final_message else ""
    text_format = answer_format(fields.tool_use, engine.chat_template, ids, begun_with=begun_with)
    requests = generate_requests_for(
        fields,
        [Prompt(ids, param)],
        engine.info,
        answer_id=answer_id,
        asked_tokens=asked_tokens,
        default_tokens=default_tokens,
        tokenizer=engine.tokenizer,
        grammar=await _grammar_of(fields, text_format, engine),
    )
    if text_format.needs_special_tokens:
        requests = [dataclasses.replace(one, skip_special_tokens=False) for one in requests]
    return Conversation(requests, text_format)


async def _grammar_of(
    fields: ChatRequest, text_format: AnswerFormat, engine: AsyncEngine
) -> Grammar | None:
    """Return what the answers must look like, calls included; None: anything goes."""
    param, text = next(fields.grammar_specs(), ("tools", None))
    spec = grammar_with_tools(fields.tool_use, text_format.style, text)
    if spec is None:
        return None
    if fields.beam is not None:
        raise refusal(f"{param}: not allowed with use_beam_search.", param)
    return await engine.compile_grammar(spec, param=param)
