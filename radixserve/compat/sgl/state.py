"""What a program writes to: SGLang's `ProgramState`, and a group of forks."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from radixserve.compat.sgl.branch import Append
from radixserve.compat.sgl.expressions import Begin, End, flat
from radixserve.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
    from typing import Self

    from radixserve.compat.sgl.branch import Branch
    from radixserve.compat.sgl.expressions import Expr, Role
    from radixserve.compat.sgl.scope import Scope
    from radixserve.frontend.report import Report


class ProgramState:
    """A branch of a running program. Appending never waits; reading does.

    Args:
        scope: The program.
        branch: The branch.
    """

    def __init__(self, scope: Scope, branch: Branch) -> None:
        self.ret_value: Any = None
        """What the function has returned."""
        self._scope = scope
        self._branch = branch

    # -- writing -------------------------------------------------------------------------------

    def __iadd__(self, value: Expr | str) -> Self:
        """Append a text, a generation, a choice, a turn, or a sum of these."""
        for part in flat(value):
            work = Append(part)
            self._scope.soon(self._branch.take, work, work.names)
        return self

    def system(self, expr: Expr | str | None = None) -> Any:
        """Write the system's turn: all of it, or what is appended in a ``with`` block."""
        return self._turn("system", expr)

    def user(self, expr: Expr | str | None = None) -> Any:
        """Write a turn of the user, likewise."""
        return self._turn("user", expr)

    def assistant(self, expr: Expr | str | None = None) -> Any:
        """Write a turn of the assistant, likewise."""
        return self._turn("assistant", expr)

    def _turn(self, role: Role, expr: Expr | str | None) -> Any:
        if expr is None:
            return self._inside(role)
        self += Begin(role) + expr + End(role)
        return None

    @contextmanager
    def _inside(self, role: Role) -> Iterator[None]:
        self += Begin(role)
        yield
        self += End(role)

    def set_var(self, name: str, value: Any) -> None:
        """Set a variable."""
        self._scope.soon(self._branch.take, _Set(name, value), (name,))

    def __setitem__(self, name: str, value: Any) -> None:
        self.set_var(name, value)

    # -- branches ------------------------------------------------------------------------------

    def fork(self, size: int = 1) -> ProgramStateGroup:
        """Return states that begin with all of this one; independent from then on."""
        branches = [self._scope.new_branch() for _ in range(size)]
        self._scope.soon(self._branch.take, _Fork(branches))
        return ProgramStateGroup([ProgramState(self._scope, one) for one in branches], self)

    @contextmanager
    def copy(self) -> Iterator[ProgramState]:
        """Yield a copy, for what should not become part of this."""
        [copied] = self.fork(1)
        yield copied
        copied.sync()

    def join(self, states: Sequence[ProgramState], mode: str = "gather_variable") -> None:
        """Take over what forks have found.

        Args:
            mode: gather_variable makes a list of each variable; concate_and_append also writes
                their texts, one after the other.
        """
        if mode not in ("gather_variable", "concate_and_append"):
            raise InvalidRequestError(
                f"mode must be gather_variable or concate_and_append; got {mode!r}", param="mode"
            )
        work = _Join([state._branch for state in states], is_text=mode != "gather_variable")
        self._scope.soon(self._branch.take, work)

    # -- reading: waits ------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Any:
        """Return a variable, when it is there.

        Raises:
            KeyError: nothing sets it.
            Exception: what went wrong before it was set.
        """
        return self._scope.wait(self._branch.value(name))

    def get_var(self, name: str) -> Any:
        """Return a variable, likewise."""
        return self[name]

    def __contains__(self, name: str) -> bool:
        try:
            self._scope.wait(self._branch.value(name))
        except KeyError:
            return False
        return True

    def get_meta_info(self, name: str) -> dict[str, Any]:
        """Return the facts of a named call: its tokens, or the options' probabilities."""
        self._scope.wait(self._branch.value(name))
        return dict(self._branch.infos[name])

    def text(self) -> str:
        """Return all that has been written, when it is; turns as ``role: text``."""
        return self._scope.wait(self._branch.settled()).text()

    def messages(self) -> list[dict[str, str]]:
        """Return the turns, when they have been written."""
        prompt = self._scope.wait(self._branch.settled())
        return [{"role": turn.role, "content": turn.text} for turn in prompt.transcript.turns]

    def sync(self) -> None:
        """Wait until all that was appended is done.

        Raises:
            Exception: what went wrong.
        """
        self._scope.wait(self._branch.settled())

    def error(self) -> BaseException | None:
        """Return what went wrong, when all is done; None if nothing did."""
        self._scope.wait(self._branch.idle())
        return self._branch.failure

    @property
    def report(self) -> Report:
        """What the program has cost so far."""
        return self._scope.run.report

    # -- streaming -----------------------------------------------------------------------------

    def text_iter(self, var_name: str | None = None) -> Iterator[str]:
        """Yield texts as they come; of one variable, or all.

        Leaving early gives the program up.

        Raises:
            Exception: what went wrong, after what came before.
        """
        place, is_whole = 0, False
        try:
            while chunk := self._scope.wait(self._heard_after(place)):
                place += len(chunk)
                yield from _texts(chunk, var_name)
            is_whole = True
        finally:
            if not is_whole:
                self._scope.wait(self._scope.give_up())

    async def text_async_iter(self, var_name: str | None = None) -> AsyncIterator[str]:
        """Yield texts as they come, in any event loop."""
        place, is_whole = 0, False
        try:
            while chunk := await self._on_loop(self._heard_after(place)):
                place += len(chunk)
                for text in _texts(chunk, var_name):
                    yield text
            is_whole = True
        finally:
            if not is_whole:
                await self._on_loop(self._scope.give_up())

    async def _heard_after(self, place: int) -> list[tuple[str | None, str]]:
        if not self._branch.keeps_log:
            raise InvalidRequestError("ask for run(..., stream=True) to read texts as they come")
        return await self._branch.heard_after(place)

    async def _on_loop(self, work: Coroutine[Any, Any, Any]) -> Any:
        future = asyncio.run_coroutine_threadsafe(work, self._scope.loop)
        return await asyncio.wrap_future(future)


def _texts(chunk: Sequence[tuple[str | None, str]], name: str | None) -> list[str]:
    return [text for variable, text in chunk if name is None or variable == name]


class ProgramStateGroup:
    """Forks of one state.

    Args:
        states: The forks.
        source: What they were forked from.
    """

    def __init__(self, states: list[ProgramState], source: ProgramState) -> None:
        self.states = states
        self._source = source

    def __len__(self) -> int:
        return len(self.states)

    def __getitem__(self, index: int) -> ProgramState:
        return self.states[index]

    def __setitem__(self, index: int, state: ProgramState) -> None:
        if state is not self.states[index]:  # forks[0] += ... comes here, with the same state
            raise InvalidRequestError("a fork cannot be replaced by another state")

    def __iter__(self) -> Iterator[ProgramState]:
        return iter(self.states)

    def __iadd__(self, value: Expr | str | Sequence[Expr | str] | Callable[[int], Any]) -> Self:
        """Append to all: the same, one for each, or what a function makes of each place."""
        for place, state in enumerate(self.states):
            if callable(value):
                state += value(place)
            elif isinstance(value, list | tuple):
                state += value[place]
            else:
                state += value  # type: ignore[arg-type]
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self.join()

    def join(self, mode: str = "gather_variable") -> None:
        """Have the source take over what the forks have found; see `ProgramState.join`."""
        self._source.join(self.states, mode)


class _Set:
    """Set a variable."""

    def __init__(self, name: str, value: Any) -> None:
        self._name = name
        self._value = value

    async def do(self, branch: Branch) -> None:
        branch.keep(self._name, self._value)

    def give_up(self, failure: BaseException) -> None:
        """Nobody hears of it."""


class _Fork:
    """Let branches begin."""

    def __init__(self, branches: Sequence[Branch]) -> None:
        self._branches = branches

    async def do(self, branch: Branch) -> None:
        prompts = branch.prompt.fork(len(self._branches))
        for child, prompt in zip(self._branches, prompts, strict=True):
            child.begin(prompt, branch.values)

    def give_up(self, failure: BaseException) -> None:
        for child in self._branches:
            child.fail(failure)


class _Join:
    """Wait for branches and take over what they have found."""

    def __init__(self, branches: Sequence[Branch], *, is_text: bool) -> None:
        self._branches = branches
        self._is_text = is_text

    async def do(self, branch: Branch) -> None:
        prompts = [await child.settled() for child in self._branches]
        names = dict.fromkeys(name for child in self._branches for name in child.values)
        for name in names:
            found = [child.values.get(name) for child in self._branches]
            if any(value is not branch.values.get(name) for value in found):
                branch.values[name] = found
        if self._is_text:
            branch.prompt.join(prompts, "text")

    def give_up(self, failure: BaseException) -> None:
        """The branches have lives of their own."""
