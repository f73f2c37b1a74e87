"""`cache_control` breakpoints: up to where a prompt is worth keeping, and for how long.

The last breakpoint counts. Its place among the tokens is found by changing the text right before
it: what comes before the first token that differs is what the breakpoint marks.

    in the last block      the conversation goes on: the whole path is held
    before it              the prefix is held; what follows goes first when memory is short
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from radixserve.engine.request import Keep
from radixserve.errors import InvalidRequestError
from radixserve.server.protocol.messages_blocks import TextBlock, ToolResultBlock, ToolUseBlock

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from radixserve.engine.request import ReleaseHint
    from radixserve.server.protocol.messages import MessagesPrompt
    from radixserve.server.protocol.messages_blocks import CacheControl

_MARK = "\N{SECTION SIGN}"
"""Any text would do; where the prompt goes on with the same, a token more counts as marked."""


@dataclass(frozen=True, slots=True)
class Breakpoint:
    """The last breakpoint of a prompt.

    Attributes:
        before: The same prompt with other text right before the breakpoint; None if nothing
            follows it.
    """

    mark: CacheControl
    before: MessagesPrompt | None

    def marked_len(self, ids: Sequence[int], encode: Callable[[MessagesPrompt], list[int]]) -> int:
        """Return how many tokens of the prompt come before the breakpoint.

        A prompt that cannot be written with the other text is taken as marked as a whole.

        Args:
            ids: Of the prompt.
            encode: Returns the ids of another one.
        """
        if self.before is None:
            return len(ids)
        try:
            other = encode(self.before)
        except InvalidRequestError:
            return len(ids)
        pairs = enumerate(zip(ids, other, strict=False))
        return next((place for place, (a, b) in pairs if a != b), min(len(ids), len(other)))

    def hint(self, given: ReleaseHint, marked_len: int, prompt_len: int) -> ReleaseHint:
        """Return the engine's hint.

        Args:
            given: What the caller said in this server's own words; it wins where it holds longer.
            marked_len: See `marked_len`.
        """
        held = replace(given, hold_s=max(given.hold_s, self.mark.hold_s))
        if given.keep is not Keep.ALL or marked_len >= prompt_len:
            return held
        return replace(held, keep=Keep.PREFIX, prefix_len=marked_len)


def last_breakpoint(prompt: MessagesPrompt) -> Breakpoint | None:
    """Return the last breakpoint of a prompt: tools come first, then the system, then messages."""
    if prompt.cache_control is not None:
        return Breakpoint(prompt.cache_control, None)
    return _in_messages(prompt) or _in_system(prompt) or _in_tools(prompt)


def _in_messages(prompt: MessagesPrompt) -> Breakpoint | None:
    is_last = True
    for place in range(len(prompt.messages) - 1, -1, -1):
        blocks = prompt.messages[place].blocks
        for index in range(len(blocks) - 1, -1, -1):
            block = blocks[index]
            if not isinstance(block, TextBlock | ToolUseBlock | ToolResultBlock):
                continue
            if block.cache_control is not None:
                changed = [*blocks[:index], block.marked(_MARK), *blocks[index + 1 :]]
                before = None if is_last else _with_blocks(prompt, place, changed)
                return Breakpoint(block.cache_control, before)
            is_last = False
    return None


def _with_blocks(prompt: MessagesPrompt, place: int, blocks: Sequence[object]) -> MessagesPrompt:
    changed = prompt.messages[place].model_copy(update={"content": blocks})
    messages = [*prompt.messages[:place], changed, *prompt.messages[place + 1 :]]
    return prompt.model_copy(update={"messages": messages})


def _in_system(prompt: MessagesPrompt) -> Breakpoint | None:
    blocks = prompt.system_blocks
    for index in range(len(blocks) - 1, -1, -1):
        mark = blocks[index].cache_control
        if mark is not None:
            changed = [*blocks[:index], blocks[index].marked(_MARK), *blocks[index + 1 :]]
            return Breakpoint(mark, prompt.model_copy(update={"system": changed}))
    return None


def _in_tools(prompt: MessagesPrompt) -> Breakpoint | None:
    for index in range(len(prompt.tools) - 1, -1, -1):
        tool = prompt.tools[index]
        if tool.cache_control is not None:
            other = tool.model_copy(update={"input_schema": {**tool.input_schema, _MARK: True}})
            tools = [*prompt.tools[:index], other, *prompt.tools[index + 1 :]]
            return Breakpoint(tool.cache_control, prompt.model_copy(update={"tools": tools}))
    return None
