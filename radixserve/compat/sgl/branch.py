"""One state's branch, on the event loop: does what was appended, in order.

the program's thread        s += user("hi")      s["answer"]: waits
                                  | queue              ^
the event loop               [ user ] [ gen ] -> values, log
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, deque
from typing import TYPE_CHECKING, Any, Protocol

from radixserve.compat.sgl.expressions import Begin, End, Expr, Gen, Select, Words
from radixserve.errors import ProgramError, RoleError
from radixserve.frontend.pieces import Turn
from radixserve.frontend.prompt import Prompt

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from radixserve.compat.sgl.expressions import Role


class TurnedPrompt(Prompt):
    """A prompt whose turns are opened and closed one by one."""

    def begin_turn(self, role: Role) -> None:
        """Open a turn.

        Raises:
            RoleError: one is open, or there is text outside of turns.
        """
        self._transcript = self._transcript.with_turn(Turn(role, is_open=True))

    def end_turn(self, role: Role) -> None:
        """Close the open turn.

        Raises:
            RoleError: it is another's.
        """
        turn = self._transcript.open_turn
        if turn is None or turn.role != role:
            raise RoleError(f"no turn of the {role} is open")
        self._transcript = self._transcript.closed()

    @property
    def open_role(self) -> str | None:
        """Whose turn is open."""
        turn = self._transcript.open_turn
        return None if turn is None else turn.role


class Work(Protocol):
    """Something that a branch does."""

    async def do(self, branch: Branch) -> None:
        """Do it."""
        ...

    def give_up(self, failure: BaseException) -> None:
        """It cannot be done any more."""
        ...


class Branch:
    """One state's branch. All but `__init__` runs on the event loop.

    Args:
        defaults: Options of generations that do not say.
        keeps_log: Whether texts are kept one by one, for whoever streams them.
    """

    def __init__(self, defaults: Mapping[str, Any], *, keeps_log: bool) -> None:
        self.defaults = defaults
        self.keeps_log = keeps_log
        self.values: dict[str, Any] = {}
        self.infos: dict[str, dict[str, Any]] = {}
        """Facts of named calls."""
        self.log: list[tuple[str | None, str]] = []
        """(variable, text) in order."""
        self.failure: BaseException | None = None
        self.is_over = False
        """Whether nothing will be appended any more."""
        self._prompt: TurnedPrompt | None = None
        self._queue: deque[Work] = deque()
        self._expected: Counter[str] = Counter()
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    @property
    def prompt(self) -> TurnedPrompt:
        """What is written to; there once the branch has begun."""
        assert self._prompt is not None
        return self._prompt

    @property
    def is_idle(self) -> bool:
        """Whether all that was appended is done, or never will be."""
        if self.failure is not None:
            return self._task is None
        return self._prompt is not None and not self._queue and self._task is None

    def is_at(self, path: str) -> bool:
        """Whether it has begun, at that place of the program."""
        return self._prompt is not None and str(self._prompt.path) == path

    # -- what comes in -------------------------------------------------------------------------

    def begin(self, prompt: TurnedPrompt, values: Mapping[str, Any]) -> None:
        """Go on from there. Mutates: this."""
        self._prompt = prompt
        self.values |= values
        self._go_on()

    def take(self, work: Work, names: Sequence[str] = ()) -> None:
        """Do something after all that came before.

        Args:
            names: Variables that it sets: who reads one waits for it.
        Mutates: this.
        """
        if self.failure is not None:
            work.give_up(self.failure)
            return
        self._queue.append(work)
        self._expected.update(names)
        self._go_on()

    def keep(self, name: str, value: Any) -> None:
        """Set a variable that was expected. Mutates: this."""
        self.values[name] = value
        self._expected[name] -= 1

    def hear(self, name: str | None, text: str) -> None:
        """Note a piece of text. Mutates: the log."""
        if self.keeps_log and text:
            self.log.append((name, text))
            self.wake()

    def fail(self, failure: BaseException) -> None:
        """Do nothing more: what waits hears of the failure. Mutates: this."""
        if self.failure is None:
            self.failure = failure
        while self._queue:
            self._queue.popleft().give_up(self.failure)
        if self._task is not None:
            self._task.cancel()
        self.wake()

    def end(self) -> None:
        """Nothing will be appended any more. Mutates: this."""
        self.is_over = True
        self.wake()

    def wake(self) -> None:
        """Let whoever waits look again."""
        self._changed.set()
        self._changed = asyncio.Event()

    # -- what goes out -------------------------------------------------------------------------

    async def value(self, name: str) -> Any:
        """Return a variable, waiting for it if something that was appended sets it.

        Raises:
            KeyError: nothing does.
            Exception: what went wrong before it was set.
        """
        while self._expected[name] > 0 or (name not in self.values and not self.is_idle):
            if self.failure is not None:
                raise self.failure
            await self._changed.wait()
        if name not in self.values and self.failure is not None:
            raise self.failure
        return self.values[name]

    async def idle(self) -> None:
        """Wait until all that was appended is done."""
        while not self.is_idle:
            await self._changed.wait()

    async def settled(self) -> TurnedPrompt:
        """Return the prompt when all that was appended is done.

        Raises:
            Exception: what went wrong.
        """
        await self.idle()
        if self.failure is not None:
            raise self.failure
        return self.prompt

    async def heard_after(self, place: int) -> list[tuple[str | None, str]]:
        """Return what the log has after a place, waiting for more; nothing at the end.

        Raises:
            Exception: what went wrong, after all that came before.
        """
        while len(self.log) == place:
            if self.failure is not None:
                raise self.failure
            if self.is_over and self.is_idle:
                return []
            await self._changed.wait()
        return self.log[place:]

    # -- inside --------------------------------------------------------------------------------

    def _go_on(self) -> None:
        if self._queue and self._task is None and self._prompt is not None:
            self._task = asyncio.get_running_loop().create_task(self._drain())
            self._task.add_done_callback(self._drained)

    async def _drain(self) -> None:
        while self._queue:
            await self._queue.popleft().do(self)
            self.wake()

    def _drained(self, task: asyncio.Task[None]) -> None:
        """A callback, not the task's own end: a task that is cancelled early never begins."""
        self._task = None
        if task.cancelled():
            self.fail(ProgramError("the program was given up"))
        elif (failure := task.exception()) is not None:
            self.fail(failure)
        else:
            self._go_on()
        self.wake()


class Append:
    """Write, generate or choose.

    Args:
        part: No sum.
    """

    def __init__(self, part: Expr) -> None:
        self._part = part

    @property
    def names(self) -> tuple[str, ...]:
        """The variable that it sets, if any."""
        part = self._part
        name = part.name if isinstance(part, Gen | Select) else None
        return () if name is None else (name,)

    async def do(self, branch: Branch) -> None:
        """See `Work`."""
        part, prompt = self._part, branch.prompt
        if isinstance(part, Words):
            prompt += part.text
            branch.hear(None, part.text)
        elif isinstance(part, Begin):
            prompt.begin_turn(part.role)
        elif isinstance(part, End):
            prompt.end_turn(part.role)
        else:
            await self._ask(branch)

    def give_up(self, failure: BaseException) -> None:
        """Nobody is waiting for it in particular."""

    async def _ask(self, branch: Branch) -> None:
        prompt = branch.prompt
        opens = prompt.transcript.is_chat and prompt.open_role is None
        if prompt.open_role not in (None, "assistant"):
            raise RoleError(f"the model does not write in a turn of the {prompt.open_role}")
        if opens:
            prompt.begin_turn("assistant")
        if isinstance(self._part, Select):
            await _choose(branch, self._part)
        elif isinstance(self._part, Gen):
            await _generate(branch, self._part)
        if opens:
            prompt.end_turn("assistant")


async def _generate(branch: Branch, part: Gen) -> None:
    prompt = branch.prompt
    before = len(prompt.text())
    options = {**branch.defaults, **part.options}
    values = await prompt.gen(part.name, str, **options)
    written = prompt.text()[before:]
    if part.name is None:
        return
    usage = prompt.report.calls[-1].usage
    branch.infos[part.name] = {
        "prompt_tokens": usage.input_tokens,
        "cached_tokens": usage.cached_tokens,
        "completion_tokens": usage.output_tokens,
    }
    if options.get("n", 1) == 1:
        branch.keep(part.name, written)
        return
    branch.keep(part.name, [one if isinstance(one, str) else json.dumps(one) for one in values])


async def _choose(branch: Branch, part: Select) -> None:
    choice = await branch.prompt.select(
        part.name, part.choices, method=part.method, temperature=part.temperature
    )
    branch.hear(part.name, choice)
    if part.name is not None:
        branch.infos[part.name] = {"probs": choice.probs, "logprobs": choice.logprobs}
        branch.keep(part.name, choice)
