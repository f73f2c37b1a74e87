"""A batch file's lines: from the first to the last, and again by their places."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from radixserve.batch.key_index import KeyIndex
from radixserve.batch.line import URLS, BatchLine, LineFault, duplicate_fault, parse_line
from radixserve.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType
    from typing import BinaryIO, Self

    from radixserve.batch.line import ParsedLine

MAX_LINE_BYTES = 64 * 1024 * 1024
"""A longer line is skipped without being held in memory."""
_BOM = b"\xef\xbb\xbf"
_GZIP = b"\x1f\x8b"


class LineRef(NamedTuple):
    """Where a line is."""

    number: int
    """From 1; blank lines count."""
    offset: int
    """Bytes."""
    length: int
    """Bytes."""


@dataclass(frozen=True, slots=True)
class ScannedLine:
    """A line that is not blank, as it was found."""

    ref: LineRef
    parsed: ParsedLine


class LineFile:
    """A batch file, open for reading. Safe to read from several threads.

    Args:
        path: Its lines end with a line feed, with or without a carriage return before it; the
            last one need not. A byte-order mark at the start is left out.
        urls: What a line may ask for.
    Raises:
        ConfigError: the file cannot be read, or is packed.
    """

    def __init__(self, path: Path, *, urls: tuple[str, ...] = URLS) -> None:
        self.path = path
        self._urls = urls
        try:
            self._file: BinaryIO = path.open("rb")
            head = os.pread(self._file.fileno(), len(_BOM), 0)
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from None
        if head.startswith(_GZIP):
            self._file.close()
            raise ConfigError(f"{path} is packed with gzip; unpack it first")
        self._start = len(_BOM) if head == _BOM else 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def scan(self) -> Iterator[ScannedLine]:
        """Yield the lines that are not blank; one whose id an earlier one has is a fault.

        Memory: one line, whatever the file's size.
        """
        ids = KeyIndex()
        try:
            for found in self._scan_all():
                line = found.parsed
                if isinstance(line, BatchLine) and not ids.add(line.custom_id):
                    yield ScannedLine(found.ref, duplicate_fault(line))
                else:
                    yield found
        finally:
            ids.close()

    def read(self, ref: LineRef) -> ParsedLine:
        """Return the line at a place that `scan` has told."""
        raw = os.pread(self._file.fileno(), ref.length, ref.offset)
        return parse_line(raw, ref.number, urls=self._urls)

    def _scan_all(self) -> Iterator[ScannedLine]:
        with self.path.open("rb") as file:
            file.seek(self._start)
            number = 0
            while raw := file.readline(MAX_LINE_BYTES):
                number += 1
                ref = LineRef(number, file.tell() - len(raw), len(raw))
                if len(raw) == MAX_LINE_BYTES and not raw.endswith(b"\n"):
                    _skip_rest(file)
                    yield ScannedLine(ref, _too_long(number))
                elif raw.strip():
                    yield ScannedLine(ref, parse_line(raw, number, urls=self._urls))


def _skip_rest(file: BinaryIO) -> None:
    while (raw := file.readline(MAX_LINE_BYTES)) and not raw.endswith(b"\n"):
        pass


def _too_long(number: int) -> LineFault:
    return LineFault(
        number, "line_too_long", f"The line is longer than {MAX_LINE_BYTES} bytes; nobody read it."
    )
