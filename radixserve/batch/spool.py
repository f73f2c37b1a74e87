"""Places of lines, kept in a file that has no name: a million of them take no memory."""

from __future__ import annotations

import os
import struct
import tempfile
from typing import TYPE_CHECKING

from radixserve.batch.reader import LineRef

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_PLACE = struct.Struct("<QQQ")
_PER_READ = 1024
"""Places that are read at once."""


class RefSpool:
    """Appends places; reads any stretch of them again. The system deletes the file at its end."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="radixserve-order-")  # noqa: SIM115  see close
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def extend(self, refs: Iterable[LineRef]) -> None:
        """Append places."""
        packed = b"".join([_PLACE.pack(*ref) for ref in refs])
        self._file.write(packed)
        self._count += len(packed) // _PLACE.size

    def read(self, start: int = 0, end: int | None = None) -> Iterator[LineRef]:
        """Yield the places from `start` on. Memory: `_PER_READ` places."""
        self._file.flush()
        end = self._count if end is None else end
        for first in range(start, end, _PER_READ):
            size = (min(end, first + _PER_READ) - first) * _PLACE.size
            packed = os.pread(self._file.fileno(), size, first * _PLACE.size)
            for fields in _PLACE.iter_unpack(packed):
                yield LineRef(*fields)

    def close(self) -> None:
        """Give the file up."""
        self._file.close()
