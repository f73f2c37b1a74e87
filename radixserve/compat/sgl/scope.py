"""One running program: its branches, its run, and the way between its thread and the loop."""

from __future__ import annotations

import asyncio
import itertools
from concurrent.futures import CancelledError as FutureCancelledError
from typing import TYPE_CHECKING, Any, TypeVar

from radixserve.compat.sgl.branch import Branch, TurnedPrompt
from radixserve.errors import ProgramError
from radixserve.frontend.events import Delta
from radixserve.frontend.loop_thread import program_loop
from radixserve.frontend.path import Path
from radixserve.frontend.run import Run, RunOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from radixserve.frontend.backends.protocol import Backend
    from radixserve.frontend.events import Event

ResultT = TypeVar("ResultT")
_numbers = itertools.count()


class Scope:
    """One running program.

    Args:
        name: The function's.
        backend: Where its calls run.
        defaults: Options of generations that do not say.
        seed: All calls' seeds come from it and from their places.
        keeps_log: Whether texts are kept one by one, for whoever streams them.
    """

    def __init__(
        self,
        name: str,
        backend: Backend,
        defaults: Mapping[str, Any],
        *,
        seed: int,
        keeps_log: bool,
    ) -> None:
        self.loop = program_loop()
        self.run = Run(
            backend=backend,
            name=f"{name}-{next(_numbers)}",
            options=RunOptions(seed=seed, max_tokens=int(defaults.get("max_tokens", 128))),
        )
        self.run.listener = self._hear
        self.inner: list[Scope] = []
        """Programs that this one has called."""
        self._path = Path((name,))
        self._defaults = defaults
        self._keeps_log = keeps_log
        self._branches: list[Branch] = []
        self.root = self.new_branch()

    def new_branch(self) -> Branch:
        """Return one more branch, not begun. Mutates: this."""
        branch = Branch(self._defaults, keeps_log=self._keeps_log)
        self._branches.append(branch)
        return branch

    def soon(self, work: Callable[..., object], *arguments: Any) -> None:
        """Have something done on the loop, in the order of these calls."""
        self.loop.call_soon_threadsafe(work, *arguments)

    def wait(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Have something done on the loop and wait for it.

        Raises:
            ProgramError: called on that loop, or the program has been given up.
        """
        try:
            is_inside = asyncio.get_running_loop() is self.loop
        except RuntimeError:
            is_inside = False
        if is_inside:
            work.close()
            raise ProgramError("a program in SGLang's style cannot run on the programs' own loop")
        try:
            return asyncio.run_coroutine_threadsafe(work, self.loop).result()
        except (FutureCancelledError, asyncio.CancelledError):
            raise ProgramError("the program was given up") from None

    async def start(self) -> None:
        """Begin; the root's failure tells if that is not possible."""
        try:
            await self.run.backend.start()
        except Exception as failure:
            self.root.fail(failure)
            return
        self.root.begin(TurnedPrompt(self.run, self._path), {})

    async def finish(self) -> None:
        """Wait until all is done, here and in the programs called, and end the run.

        Raises:
            Exception: the first failure, by the order in which branches were made.
        """
        for branch in self._branches:
            branch.end()
        for branch in self._branches:
            await branch.idle()
        failures = [branch.failure for branch in self._branches if branch.failure is not None]
        for scope in self.inner:
            try:
                await scope.finish()
            except Exception as failure:
                failures.append(failure)
        self.run.end()
        if failures:
            raise failures[0]

    async def give_up(self) -> None:
        """End all that runs, here and in the programs called."""
        for branch in self._branches:
            branch.fail(ProgramError("the program was given up"))
            branch.end()
        for branch in self._branches:
            await branch.idle()
        for scope in self.inner:
            await scope.give_up()
        self.run.end()

    def _hear(self, event: Event) -> None:
        if not isinstance(event, Delta) or not self._keeps_log:
            return
        place = event.path.partition(".gen(")[0]
        for branch in self._branches:
            if branch.failure is None and branch.is_at(place):
                branch.hear(event.name, event.text)
