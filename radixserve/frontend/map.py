"""One program, many items: bounded, in prefix order, with progress, and resumable."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from radixserve.errors import InvalidRequestError
from radixserve.frontend.checkpoint import Checkpoint
from radixserve.frontend.keywords import from_keywords
from radixserve.frontend.loop_thread import run_blocking
from radixserve.frontend.map_progress import MapProgress
from radixserve.frontend.report import Report

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator, Iterator, Mapping, Sequence
    from pathlib import Path as FilePath

    from radixserve.frontend.program import Program

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True, kw_only=True)
class MapOptions:
    """How many items are run."""

    concurrency: int = 64
    """Most programs at a time."""
    progress: bool = True
    """Show a bar with rates on stderr, if that is a terminal."""
    on_error: Literal["raise", "return"] = "raise"
    """return puts the exception in the item's place, and the rest goes on."""
    checkpoint: str | FilePath | None = None
    """A file that results are written to as they come; what it has is not run again."""
    order: Literal["input", "done"] = "input"
    """In which order iteration yields. The awaited list is in the order of the items."""
    prefix_order: bool = True
    """Submit items whose prompts begin alike one after the other."""

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> MapOptions:
        """Return the options of some keyword arguments.

        Raises:
            InvalidRequestError: there is no such option, or it is out of range.
        """
        options = from_keywords(cls, fields, "map")
        if options.concurrency < 1:
            raise InvalidRequestError(
                f"concurrency must be at least 1; got {options.concurrency}", param="concurrency"
            )
        if options.on_error not in ("raise", "return"):
            raise InvalidRequestError("on_error must be raise or return", param="on_error")
        return options


class ResultList(list[ResultT]):
    """The results in the order of the items, and what they cost."""

    report: Report

    def __init__(self, values: Sequence[ResultT], report: Report) -> None:
        super().__init__(values)
        self.report = report


class Results(Generic[ResultT]):
    """Many runs, not begun until they are awaited, iterated over, or waited for."""

    def __init__(
        self, program: Program[Any, ResultT], items: Sequence[Any], options: MapOptions
    ) -> None:
        self._program = program
        self._items = items
        self._options = options
        self.report = Report()
        """Grows as items are done."""

    def __repr__(self) -> str:
        return f"<{len(self._items)} runs of {self._program.name}>"

    def __await__(self) -> Generator[Any, None, ResultList[ResultT]]:
        return self._collected().__await__()

    def wait(self) -> ResultList[ResultT]:
        """Run them all outside of an event loop."""
        return run_blocking(self._collected())

    async def __aiter__(self) -> AsyncIterator[tuple[int, ResultT]]:
        """Yield (place of the item, result), by place or as they are done; see `order`."""
        held: dict[int, ResultT] = {}
        following = 0
        async for index, value in self._done():
            if self._options.order == "done":
                yield index, value
                continue
            held[index] = value
            while following in held:
                yield following, held.pop(following)
                following += 1

    async def _collected(self) -> ResultList[ResultT]:
        found = {index: value async for index, value in self._done()}
        return ResultList([found[index] for index in range(len(self._items))], self.report)

    async def _done(self) -> AsyncIterator[tuple[int, ResultT]]:
        """Yield results as they come; leaving early cancels what still runs."""
        checkpoint = Checkpoint.open(self._options.checkpoint, self._program, self._items)
        progress = MapProgress(self._program.name, len(self._items), self.report)
        finished: asyncio.Queue[tuple[int, Any] | BaseException | None] = asyncio.Queue()
        with checkpoint, progress.shown(self._options.progress):
            for index, value in checkpoint.known.items():
                progress.advance()
                yield index, value
            todo = iter(self._order(checkpoint.known))
            workers = [
                asyncio.ensure_future(self._work(todo, finished))
                for _ in range(min(self._options.concurrency, len(self._items)))
            ]
            ending = asyncio.ensure_future(_tell_end(workers, finished))
            try:
                while (item := await finished.get()) is not None:
                    if isinstance(item, BaseException):
                        raise item
                    index, value = item
                    if not isinstance(value, BaseException):
                        checkpoint.keep(index, value)
                    progress.advance()
                    yield index, value
            finally:
                for task in (ending, *workers):
                    task.cancel()
                await asyncio.gather(ending, *workers, return_exceptions=True)

    async def _work(
        self, todo: Iterator[int], finished: asyncio.Queue[tuple[int, Any] | BaseException | None]
    ) -> None:
        """Run one item after the other."""
        for index in todo:
            run = self._program.new_run()
            try:
                value: Any = await self._program.run_item(run, index, self._items[index])
            except Exception as failure:
                if self._options.on_error == "raise":
                    finished.put_nowait(failure)
                    return
                value = failure
            finally:
                self.report.extend(run.report)
            finished.put_nowait((index, value))

    def _order(self, known: Mapping[int, Any]) -> list[int]:
        """The items to run: those whose prompts begin alike are neighbours."""
        left = [index for index in range(len(self._items)) if index not in known]
        if not self._options.prefix_order:
            return left
        keys = {index: self._key(index) for index in left}
        return sorted(left, key=lambda index: (keys[index], index))

    def _key(self, index: int) -> str:
        """The item's prompt at its first call; empty if it cannot be rendered without running."""
        try:
            return self._program.render_item(self._items[index])
        except Exception:
            return ""


async def _tell_end(
    workers: Sequence[asyncio.Future[None]],
    finished: asyncio.Queue[tuple[int, Any] | BaseException | None],
) -> None:
    await asyncio.gather(*workers, return_exceptions=True)
    finished.put_nowait(None)


def map_items(
    program: Program[Any, ResultT], items: Sequence[Any], options: MapOptions
) -> Results[ResultT]:
    """Return the runs of a program over some items, not begun yet."""
    return Results(program, items, options)
