"""The loop of an agent: the model calls tools until it has an answer.

    user        question
    assistant   {"calls": [{"tool": "search", "arguments": {"query": "..."}}]}
    user        {"results": [{"tool": "search", "result": "..."}]}
    assistant   {"answer": "..."}

Each of the assistant's turns is one generation that is constrained to calls or an answer, whatever
the model's chat template knows of tools, and on any backend that has JSON. The tools are described
in the system's turn, where all runs of a program share them; once something has been generated,
which must not be computed again, in the last turn of the user.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from radixserve.errors import InvalidRequestError, RoleError, StepLimitError
from radixserve.frontend.events import ToolEnd, ToolStart
from radixserve.frontend.pieces import Generated, Text, Transcript, Turn
from radixserve.frontend.tools import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve.frontend.prompt import Prompt
    from radixserve.frontend.run import Run
    from radixserve.frontend.tools import Tool, Toolbox

OnToolError: TypeAlias = Literal["tell", "raise"]


class Stop(Exception):
    """Raised by a tool: the loop ends here, and this is its result.

    Args:
        result: What `act` returns.
    """

    def __init__(self, result: Any = None) -> None:
        super().__init__(result)
        self.result = result


class Agent:
    """One loop on one branch.

    Args:
        prompt: The branch.
        run: Its run, which is told of the tools.
        toolbox: The tools.
        on_error: Whether the model is told of a tool's failure, or the program.
        options: Of each generation.
    """

    def __init__(
        self,
        prompt: Prompt,
        run: Run,
        toolbox: Toolbox,
        *,
        on_error: OnToolError,
        options: dict[str, Any],
    ) -> None:
        if on_error not in ("tell", "raise"):
            raise InvalidRequestError(
                f"on_tool_error must be tell or raise; got {on_error!r}", param="on_tool_error"
            )
        self._prompt = prompt
        self._run = run
        self._toolbox = toolbox
        self._on_error = on_error
        self._options = options

    async def answer(self, max_steps: int) -> Any:
        """Return the model's answer, or what a tool has stopped with.

        Raises:
            StepLimitError: there is none after so many steps.
            Exception: what a tool raised (raise).
        """
        if max_steps < 1:
            raise InvalidRequestError(
                f"max_steps must be at least 1; got {max_steps}", param="max_steps"
            )
        for number in range(max_steps):
            self._prompt.hint(pause_s=self._toolbox.pause_s)
            step = await self._prompt.gen(None, self._toolbox.step, **self._options)
            if hasattr(step, "answer"):
                return step.answer
            try:
                results = await self._call_all(number, step.calls)
            except Stop as stop:
                return stop.result
            self._prompt.user(json.dumps({"results": results}, ensure_ascii=False))
        raise StepLimitError(
            f"there was no answer after {max_steps} steps",
            partial=self._prompt.transcript.turns[-2].text,
        )

    async def _call_all(self, number: int, calls: Sequence[Any]) -> list[dict[str, str]]:
        """Call the tools side by side; the first failure that is not told cancels the others."""
        tasks = [
            asyncio.ensure_future(self._call(f"{self._prompt.path}.act[{number}]", place, call))
            for place, call in enumerate(calls)
        ]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _call(self, step: str, place: int, call: Any) -> dict[str, str]:
        tool: Tool = self._toolbox.tools[call.tool]
        path = f"{step}.{tool.name}[{place}]"
        self._run.tell(ToolStart(path, tool.name, tool.given(call.arguments)))
        try:
            result = shown(await tool.call(call.arguments))
        except Stop as stop:
            self._run.tell(ToolEnd(path, tool.name, shown(stop.result)))
            raise
        except Exception as failed:
            told = f"{type(failed).__name__}: {failed}"
            self._run.tell(ToolEnd(path, tool.name, told))
            if self._on_error == "raise":
                failed.add_note(f"in {path}")
                raise
            return {"tool": tool.name, "error": told}
        self._run.tell(ToolEnd(path, tool.name, result))
        return {"tool": tool.name, "result": result}


def with_instructions(transcript: Transcript, instructions: str) -> Transcript:
    """Return a chat in which the model is told of its tools; unchanged if it has been.

    Raises:
        RoleError: it is no chat, or the user has not spoken last.
    """
    turns = transcript.turns
    if not turns or turns[-1].is_open or turns[-1].role == "assistant":
        raise RoleError("act needs a chat in which the user has spoken last: write p.user(text)")
    if any(instructions in turn.text for turn in turns):
        return transcript
    if any(isinstance(part, Generated) for part in transcript.texts()):
        return replace(transcript, turns=(*turns[:-1], _told(turns[-1], instructions)))
    if turns[0].role == "system":
        return replace(transcript, turns=(_told(turns[0], instructions), *turns[1:]))
    return replace(transcript, turns=(Turn("system", (Text(instructions),)), *turns))


def _told(turn: Turn, instructions: str) -> Turn:
    return replace(turn, parts=(Text(f"{turn.text}\n\n{instructions}"),))
