"""What a request of a batch file would cost, without running it: as its route would read it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve.batch.estimate import LineCost
from radixserve.errors import RequestError
from radixserve.server.conversation import encode_chat
from radixserve.server.protocol.chat import parse_chat
from radixserve.server.protocol.completions import DEFAULT_MAX_TOKENS, parse_completion
from radixserve.server.protocol.messages import parse_messages
from radixserve.server.protocol.messages_chat import chat_of as chat_of_messages
from radixserve.server.protocol.responses import parse_responses
from radixserve.server.protocol.responses_chat import chat_of as chat_of_responses

if TYPE_CHECKING:
    from radixserve.batch.line import BatchLine
    from radixserve.server.protocol.chat import ChatRequest
    from radixserve.text.chat_template import ChatTemplate
    from radixserve.text.tokenizer import Tokenizer


class LineCosts:
    """Tells what requests cost.

    Args:
        context_len: Most tokens of prompt and output together.
        ignore_unknown: Whether fields that no route knows are left out, or refused.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        *,
        context_len: int,
        ignore_unknown: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._context_len = context_len
        self._ignore_unknown = ignore_unknown

    def of(self, line: BatchLine) -> LineCost | None:
        """Return what a request brings; None if its route would refuse it."""
        try:
            cost = self._completion(line) if line.url == "/v1/completions" else self._chat(line)
        except RequestError:
            return None
        longest = max((len(ids) for ids in cost.prompts), default=0)
        return cost if longest > 0 and longest + cost.output_len <= self._context_len else None

    def _completion(self, line: BatchLine) -> LineCost:
        fields = parse_completion(line.body, ignore_unknown=self._ignore_unknown)
        add_special = fields.add_special_tokens
        prompts = [
            self._tokenizer.encode(prompt, add_special_tokens=add_special)
            if isinstance(prompt, str)
            else prompt
            for prompt in fields.prompts
        ]
        asked = DEFAULT_MAX_TOKENS if fields.asked_tokens is None else fields.asked_tokens
        return LineCost(prompts, asked, fields.num_siblings)

    def _chat(self, line: BatchLine) -> LineCost:
        chat, asked = self._read_chat(line)
        ids = encode_chat(chat, self._template)
        room = max(1, self._context_len - len(ids))
        if asked is None or line.url == "/v1/messages":  # a default there, not a demand
            asked = min(asked or room, room)
        return LineCost([ids], asked, chat.num_siblings)

    def _read_chat(self, line: BatchLine) -> tuple[ChatRequest, int | None]:
        """Return the chat, and the output tokens that are asked for."""
        lax = self._ignore_unknown
        if line.url == "/v1/messages":
            messages = parse_messages(line.body, ignore_unknown=lax)
            return chat_of_messages(messages), messages.max_tokens
        if line.url == "/v1/responses":
            responses = parse_responses(line.body, ignore_unknown=lax)
            return chat_of_responses(responses), responses.max_output_tokens
        chat = parse_chat(line.body, ignore_unknown=lax)
        return chat, chat.asked_tokens
