"""`@function`: a program, and the ways to run it."""

from __future__ import annotations

import functools
import inspect
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal

from radixserve.compat.sgl.backends import default_backend
from radixserve.compat.sgl.expressions import sampling
from radixserve.compat.sgl.scope import Scope
from radixserve.compat.sgl.state import ProgramState
from radixserve.errors import InvalidRequestError, UnsupportedFeatureError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from radixserve.frontend.backends.protocol import Backend

MAX_THREADS = 64
"""Programs of one batch that run side by side, unless it says `num_threads`; and programs that are
streamed at a time: one more waits for its turn. Each has a thread while it runs, and no longer;
the calls they wait for are all on one event loop."""
DEFAULT_MAX_TOKENS = 128
RUN_NAMES = ("backend", "max_new_tokens", "seed", "stream")

_streamed = threading.BoundedSemaphore(MAX_THREADS)
_running: ContextVar[Scope | None] = ContextVar("radixserve_sgl_scope", default=None)


class SglFunction:
    """A program. Made by `function`.

    Args:
        func: ``def f(s, ...)``.
        bound: Arguments that are given already.
    """

    def __init__(self, func: Callable[..., Any], bound: Mapping[str, Any] | None = None) -> None:
        functools.update_wrapper(self, func)
        self.func = func
        self.bind_arguments = dict(bound or {})
        self._name = str(getattr(func, "__name__", "program"))

    def __repr__(self) -> str:
        return f"<SglFunction {self._name}>"

    def bind(self, **arguments: Any) -> SglFunction:
        """Return the same program with some arguments given."""
        return SglFunction(self.func, self.bind_arguments | arguments)

    def __call__(self, *args: Any, **kwargs: Any) -> ProgramState:
        """Run it; see `run`."""
        return self.run(*args, **kwargs)

    def run(self, *args: Any, **kwargs: Any) -> ProgramState:
        """Run it in this thread and return its state when all is done.

        Inside another program it returns when the function has: what it asked for goes on, and
        reading waits for it.

        Args:
            kwargs: The function's arguments, and of the run: backend, max_new_tokens, stop,
                temperature, top_p, top_k, seed, stream (in a thread of its own; returns at once).
        Raises:
            Exception: what the program raised, or what went wrong in one of its branches.
        """
        state, scope, arguments = self._new(kwargs)
        if scope.root.keeps_log:
            _streamed.acquire()
            threading.Thread(
                target=self._stream,
                args=(state, scope, args, arguments),
                name=f"radixserve-sgl-{scope.run.name}",
                daemon=True,  # so is the loop that it waits for
            ).start()
            return state
        outer = _running.get()
        self._execute(state, scope, args, arguments)
        if outer is None:
            scope.wait(scope.finish())
        else:
            outer.inner.append(scope)
        return state

    def run_batch(
        self,
        batch_kwargs: Sequence[Mapping[str, Any]],
        *,
        num_threads: int | Literal["auto"] = "auto",
        progress_bar: bool = False,
        generator_style: bool = False,
        **options: Any,
    ) -> list[ProgramState] | Iterator[ProgramState]:
        """Run it once for each set of arguments, side by side; return the states in that order.

        One that fails keeps its failure: its state's `error()` tells it, reading raises it.

        Args:
            num_threads: Programs at a time.
            progress_bar: Show a bar on stderr, if that is a terminal.
            generator_style: Return an iterator that yields the states as they are done.
            options: Of each run; see `run`.
        """
        if num_threads == "auto":
            num_threads = MAX_THREADS
        if num_threads < 1:
            raise InvalidRequestError("num_threads must be at least 1", param="num_threads")
        options = {"backend": default_backend(), **options}  # of this context, not of a thread's
        states = self._run_all(batch_kwargs, num_threads, options, progress_bar=progress_bar)
        return states if generator_style else list(states)

    def _run_all(
        self,
        batch: Sequence[Mapping[str, Any]],
        num_threads: int,
        options: Mapping[str, Any],
        *,
        progress_bar: bool,
    ) -> Iterator[ProgramState]:
        from radixserve.frontend.map_progress import MapProgress
        from radixserve.frontend.report import Report

        report = Report()
        progress = MapProgress(self._name, len(batch), report)
        threads = min(num_threads, max(1, len(batch)))
        with (
            progress.shown(progress_bar),
            ThreadPoolExecutor(threads, thread_name_prefix="radixserve-sgl") as pool,
        ):
            for state in pool.map(lambda one: self._run_safe({**options, **one}), batch):
                report.extend(state.report)
                progress.advance()
                yield state

    def _run_safe(self, kwargs: dict[str, Any]) -> ProgramState:
        """Run it; a failure stays in the state."""
        state, scope, arguments = self._new(kwargs)
        try:
            self._execute(state, scope, (), arguments)
            scope.wait(scope.finish())
        except Exception as failure:
            scope.soon(scope.root.fail, failure)
        return state

    def _stream(
        self, state: ProgramState, scope: Scope, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        try:
            self._execute(state, scope, args, kwargs)
            scope.wait(scope.finish())
        except Exception as failure:
            scope.soon(scope.root.fail, failure)
        finally:
            scope.soon(scope.root.end)
            _streamed.release()

    def _execute(
        self, state: ProgramState, scope: Scope, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Run the function. What it asked for may still go on; if it raises, it is given up."""
        scope.wait(scope.start())
        token = _running.set(scope)
        try:
            state.ret_value = self.func(state, *args, **kwargs)
        except BaseException:
            scope.wait(scope.give_up())
            raise
        finally:
            _running.reset(token)

    def _new(self, kwargs: Mapping[str, Any]) -> tuple[ProgramState, Scope, dict[str, Any]]:
        """Return a state for a run, and the function's own arguments."""
        given = {**self.bind_arguments, **kwargs}
        backend: Backend = given.pop("backend", None) or default_backend()
        own = {name: given.pop(name) for name in list(given) if name in self._own_names()}
        if given.get("use_thread") is not None:
            del given["use_thread"]  # there is always one, and only one
        defaults = sampling(given, where=self._name, beside=RUN_NAMES)
        defaults["max_tokens"] = given.get("max_new_tokens", DEFAULT_MAX_TOKENS)
        scope = Scope(
            self._name,
            backend,
            defaults,
            seed=given.get("seed", 0),
            keeps_log=bool(given.get("stream")),
        )
        return ProgramState(scope, scope.root), scope, own

    def _own_names(self) -> list[str]:
        return list(inspect.signature(self.func).parameters)[1:]


def function(func: Callable[..., Any] | None = None, num_api_spec_tokens: int | None = None) -> Any:
    """Make a program of ``def f(s, ...)``; with or without arguments.

    Raises:
        UnsupportedFeatureError: speculation over an API is asked for.
    """
    if num_api_spec_tokens is not None:
        raise UnsupportedFeatureError(
            "num_api_spec_tokens is not supported here", param="num_api_spec_tokens"
        )
    return SglFunction if func is None else SglFunction(func)
