"""`@program`: an async function over a prompt, and the ways to run it.

@rs.program
async def classify(p, review: str) -> str:
    p += f"Review: {review}\\nLabel: "
    return await p.select("label", ["pos", "neg"])

await classify("great film")            inside an event loop
classify.run("great film")              outside
await classify.map(reviews)             many, side by side
async for event in classify.stream(..)  with named variables as they come
classify.render("great film")           the prompt up to the first call, without a model
"""

from __future__ import annotations

import asyncio
import functools
import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

from radixserve.errors import InvalidRequestError
from radixserve.frontend.default_backend import current_backend
from radixserve.frontend.events import Result
from radixserve.frontend.loop_thread import run_blocking
from radixserve.frontend.map import MapOptions, Results, map_items
from radixserve.frontend.path import Path
from radixserve.frontend.prompt import Prompt
from radixserve.frontend.record import current_recording
from radixserve.frontend.rendering import rendered
from radixserve.frontend.report import Report
from radixserve.frontend.run import Run, RunOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
    from typing import Concatenate

    from radixserve.frontend.backends.protocol import Backend
    from radixserve.frontend.events import Event

Params = ParamSpec("Params")
ResultT = TypeVar("ResultT")
PRIORITIES = {"batch": -10, "interactive": 0}


class Program(Generic[Params, ResultT]):
    """A prompt program. Made by `program`.

    Args:
        function: ``async def f(p, ...)``.
        name: For paths, reports and the order `fair`; the function's own when None.
        options: For every run.
        backend: For every run; the context's when None.
    """

    def __init__(
        self,
        function: Callable[Concatenate[Prompt, Params], Awaitable[ResultT]],
        *,
        name: str | None,
        options: RunOptions,
        backend: Backend | None,
    ) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._name: str = name or str(getattr(function, "__name__", "program"))
        self._options = options
        self._backend = backend
        self._runs = itertools.count()

    def __repr__(self) -> str:
        return f"<program {self._name}>"

    @property
    def name(self) -> str:
        """What paths begin with."""
        return self._name

    def using(self, backend: Backend | None = None, **options: Any) -> Program[Params, ResultT]:
        """Return the same program with another backend, seed, priority, ttl_s, budget, ..."""
        return Program(
            self._function,
            name=self._name,
            options=replace(self._options, **options),
            backend=backend or self._backend,
        )

    async def __call__(self, *args: Params.args, **kwargs: Params.kwargs) -> ResultT:
        """Run it and return what it returns.

        Raises:
            Exception: what the program raises; calls on the engine are given up, and a note says
                which call failed.
        """
        return await self._run(self.new_run(), Path((self._name,)), args, kwargs)

    def run(self, *args: Params.args, **kwargs: Params.kwargs) -> ResultT:
        """Run it outside of an event loop."""
        return run_blocking(self._run(self.new_run(), Path((self._name,)), args, kwargs))

    async def stream(self, *args: Params.args, **kwargs: Params.kwargs) -> AsyncIterator[Event]:
        """Run it and yield events as they come, at the end a `Result`.

        Leaving early gives the run up.

        Raises:
            Exception: what the program raises, after the events before it.
        """
        events: asyncio.Queue[Event | None] = asyncio.Queue()
        run = self.new_run()
        run.listener = events.put_nowait
        task = asyncio.ensure_future(self._run(run, Path((self._name,)), args, kwargs))
        task.add_done_callback(lambda _: events.put_nowait(None))
        try:
            while (event := await events.get()) is not None:
                yield event
            yield Result(task.result())
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    def map(self, items: Iterable[Any], **options: Any) -> Results[ResultT]:
        """Run it for many items; await the result, iterate over it, or call its `.wait()`.

        An item is the argument; a tuple is several, a dict is several by name.

        Args:
            options: Fields of `MapOptions`: concurrency, progress, on_error, checkpoint, order.
        """
        return map_items(self, list(items), MapOptions.of(options))

    def render(self, *args: Params.args, **kwargs: Params.kwargs) -> str:
        """Return the prompt as it stands at the first call, without a model."""
        return rendered(self._function, self._name, args, kwargs)

    def new_run(self) -> Run:
        """Return what the branches of one run share."""
        return Run(
            backend=self._backend or current_backend(),
            name=f"{self._name}-{next(self._runs)}",
            options=self._options,
            report=Report(),
            recording=current_recording(),
        )

    async def _run(
        self, run: Run, path: Path, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> ResultT:
        await run.backend.start()
        try:
            return await self._function(Prompt(run, path), *args, **kwargs)
        finally:
            run.end()

    async def run_item(self, run: Run, index: int, item: Any) -> ResultT:
        """Run it for one item of many, under a path that names the item's place."""
        args, kwargs = _arguments(item)
        return await self._run(run, Path((f"{self._name}[{index}]",)), args, kwargs)

    def render_item(self, item: Any) -> str:
        """Return the prompt of one item at its first call."""
        args, kwargs = _arguments(item)
        return rendered(self._function, self._name, args, kwargs)


def _arguments(item: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(item, dict):
        return (), item
    return (item, {}) if isinstance(item, tuple) else ((item,), {})


@overload
def program(
    function: Callable[Concatenate[Prompt, Params], Awaitable[ResultT]],
) -> Program[Params, ResultT]: ...


@overload
def program(
    *,
    name: str | None = None,
    priority: int | str = 0,
    ttl: float = 0.0,
    seed: int = 0,
    budget: int | None = None,
    max_tokens: int = 256,
    backend: Backend | None = None,
) -> Callable[
    [Callable[Concatenate[Prompt, Params], Awaitable[ResultT]]], Program[Params, ResultT]
]: ...


def program(
    function: Callable[..., Awaitable[Any]] | None = None,
    *,
    name: str | None = None,
    priority: int | str = 0,
    ttl: float = 0.0,
    seed: int = 0,
    budget: int | None = None,
    max_tokens: int = 256,
    backend: Backend | None = None,
) -> Any:
    """Make a program of ``async def f(p, ...)``; with or without arguments.

    Args:
        name: The function's own when None.
        priority: Higher goes first; or "batch", "interactive".
        ttl: Seconds for which what it has written is held in the cache after each call.
        seed: All its calls' seeds come from this and their paths.
        budget: Most tokens computed in a run.
        max_tokens: Of a generation that does not say.
        backend: Where it runs; the context's when None, see `use`.
    Raises:
        InvalidRequestError: a priority of that name does not exist.
    """
    if isinstance(priority, str):
        if priority not in PRIORITIES:
            raise InvalidRequestError(
                f"priority must be a number or one of {', '.join(PRIORITIES)}", param="priority"
            )
        priority = PRIORITIES[priority]
    options = RunOptions(
        seed=seed, priority=priority, ttl_s=ttl, budget=budget, max_tokens=max_tokens
    )

    def wrap(wrapped: Callable[..., Awaitable[Any]]) -> Program[Any, Any]:
        return Program(wrapped, name=name, options=options, backend=backend)

    return wrap if function is None else wrap(function)
