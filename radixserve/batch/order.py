"""In which order requests are sent: as they are in the file, or depth first over their prefixes.

Sorted by their prompts, requests that begin alike are neighbours, and walking the sorted list is
walking the tree of their common prefixes depth first: a shared part is computed once and need not
stay in the cache when its subtree is done.

A file may be far larger than the memory, so it is sorted in runs:

    scan    keys of some lines, up to `chunk_bytes` ->  sort  ->  their places, a run, to a spool
    merge   one key of each run, read again from the file     ->  places in the order of all

What is held at any time: the keys of one chunk, or one key for each run.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Protocol

from radixserve.batch.line import BatchLine
from radixserve.batch.prompt_key import prompt_key
from radixserve.batch.spool import RefSpool
from radixserve.errors import BatchError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from radixserve.batch.reader import LineFile, LineRef

CHUNK_BYTES = 64 * 1024 * 1024
"""Keys that are sorted in memory at once."""
CHUNK_LINES = 200_000


class LineOrder(Protocol):
    """Takes lines in the order of the file, gives them back in its own."""

    def add(self, ref: LineRef, line: BatchLine) -> None:
        """Take in one more line."""
        ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[BatchLine]: ...

    def close(self) -> None:
        """Give up the files behind it."""
        ...


class FileOrder:
    """The order of the file.

    Args:
        source: Where the lines are.
    """

    def __init__(self, source: LineFile) -> None:
        self._source = source
        self._spool = RefSpool()

    def __len__(self) -> int:
        return len(self._spool)

    def add(self, ref: LineRef, line: BatchLine) -> None:
        """Take in one more line."""
        del line
        self._spool.extend([ref])

    def __iter__(self) -> Iterator[BatchLine]:
        return lines_at(self._source, self._spool.read())

    def close(self) -> None:
        """Give up the file behind it."""
        self._spool.close()


class PrefixOrder:
    """Depth first over the tree of common prefixes; equal prompts in the order of the file.

    Args:
        source: Where the lines are.
        chunk_bytes: Keys that are held at once while lines are added.
        chunk_lines: The same, in lines.
    Attributes:
        peak_keys: Most keys that were held at once.
        peak_key_bytes: Their bytes.
    """

    def __init__(
        self,
        source: LineFile,
        *,
        chunk_bytes: int = CHUNK_BYTES,
        chunk_lines: int = CHUNK_LINES,
    ) -> None:
        self._source = source
        self._chunk_bytes = chunk_bytes
        self._chunk_lines = chunk_lines
        self._spool = RefSpool()
        self._chunk: list[tuple[bytes, LineRef]] = []
        self._held_bytes = 0
        self._runs: list[tuple[int, int]] = []
        self.peak_keys = self.peak_key_bytes = 0

    def __len__(self) -> int:
        return len(self._spool) + len(self._chunk)

    @property
    def num_runs(self) -> int:
        """Sorted runs in the spool."""
        return len(self._runs)

    def add(self, ref: LineRef, line: BatchLine) -> None:
        """Take in one more line."""
        key = prompt_key(line)
        self._chunk.append((key, ref))
        self._held_bytes += len(key)
        self.peak_keys = max(self.peak_keys, len(self._chunk))
        self.peak_key_bytes = max(self.peak_key_bytes, self._held_bytes)
        if self._held_bytes >= self._chunk_bytes or len(self._chunk) >= self._chunk_lines:
            self._spill()

    def __iter__(self) -> Iterator[BatchLine]:
        # A generator: sorting the last chunk is left to whoever asks for the first line.
        self._spill()
        if len(self._runs) == 1:
            yield from lines_at(self._source, self._spool.read())
        else:
            yield from self._merged()

    def close(self) -> None:
        """Give up the file behind it."""
        self._spool.close()

    def _spill(self) -> None:
        """Write the chunk down as one more run. Equal keys: `LineRef` sorts by line."""
        if not self._chunk:
            return
        self._chunk.sort()
        start = len(self._spool)
        self._spool.extend([ref for _, ref in self._chunk])
        self._runs.append((start, len(self._spool)))
        self._chunk = []
        self._held_bytes = 0

    def _merged(self) -> Iterator[BatchLine]:
        self.peak_keys = max(self.peak_keys, len(self._runs))
        runs = [self._keyed(start, end) for start, end in self._runs]
        for _, _, line in heapq.merge(*runs, key=lambda item: item[:2]):
            yield line

    def _keyed(self, start: int, end: int) -> Iterator[tuple[bytes, int, BatchLine]]:
        for line in lines_at(self._source, self._spool.read(start, end)):
            yield prompt_key(line), line.number, line


def lines_at(source: LineFile, refs: Iterator[LineRef]) -> Iterator[BatchLine]:
    """Yield the requests at some places.

    Raises:
        BatchError: there is no request any more.
    """
    for ref in refs:
        line = source.read(ref)
        if not isinstance(line, BatchLine):
            raise BatchError(f"{source.path} was changed while it was read (line {ref.number})")
        yield line
