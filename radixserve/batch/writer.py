"""Results in a file, a line each: appended in one piece, and found again after a crash.

A record is one `write` of a whole line to a file that is open for appending. A process that is
killed leaves whole lines and at most one that is cut short; the cut line is dropped when the file
is opened again, and its request is run again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from typing import TYPE_CHECKING, Protocol

import orjson

from radixserve.batch.key_index import KeyIndex, Place
from radixserve.batch.record import is_ok, key_of
from radixserve.batch.report import TokenCounts, tokens_of
from radixserve.errors import BatchError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from radixserve.batch.record import Record

_TAIL_BYTES = 1 << 20


class ResultSink(Protocol):
    """Where records go. May be used from several threads."""

    def find(self, key: str) -> Place | None:
        """Return where the record of a key is; None if there is none yet."""
        ...

    def append(self, record: Record) -> None:
        """Write a record down; one of a key that is known already is dropped.

        Raises:
            BatchError: it cannot be written.
        """
        ...


class ResultFile:
    """An output file, open for more results.

    Args:
        path: Made if there is none. What it holds is kept, and is not run again.
        redo_failed: Drop the records of failures first, so that those are run again.
    Raises:
        ConfigError: it cannot be written, somebody else is writing it, or a line of it is no
            result.
    """

    def __init__(self, path: Path, *, redo_failed: bool = False) -> None:
        self.path = path
        self.index = KeyIndex()
        """Where each record is."""
        self.num_ok = self.num_failed = 0
        """Records in the file."""
        self._lock = threading.Lock()
        self._file = _open_locked(path)
        try:
            _cut_tail(self._file)
            if redo_failed:
                self._file = _without_failures(path, self._file)
            self._size = self._read()
        except BaseException:
            self.close()
            raise

    def find(self, key: str) -> Place | None:
        """Return where the record of a key is; None if there is none yet."""
        return self.index.find(key)

    def append(self, record: Record) -> None:
        """Write a record down; one of a key that is known already is dropped.

        Raises:
            BatchError: it cannot be written.
        """
        line = orjson.dumps(record) + b"\n"
        place = Place(0, len(line), is_ok(record))
        with self._lock:
            if not self.index.add(key_of(record), Place(self._size, place.length, place.is_ok)):
                return
            self._write(line)
            self._size += len(line)
            self._count(place)

    def sync(self) -> None:
        """Wait until the disk has everything."""
        os.fsync(self._file)

    def close(self) -> None:
        """Let others write the file. Waits for a record that is being written."""
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1
                self.index.close()

    def _write(self, line: bytes) -> None:
        try:
            written = os.write(self._file, line)
            while written < len(line):  # a signal, or a disk that is nearly full
                written += os.write(self._file, line[written:])
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._size)  # nothing may follow half a line
            raise BatchError(f"cannot write {self.path}: {error.strerror}") from None

    def _read(self) -> int:
        """Take note of the records there are. Returns: the file's size in bytes."""
        offset = 0
        for number, line in enumerate(read_lines(self.path), 1):
            key, place = _parse(line, offset, f"{self.path}, line {number},")
            if self.index.add(key, place):
                self._count(place)
            offset += len(line)
        return offset

    def _count(self, place: Place) -> None:
        self.num_ok += place.is_ok
        self.num_failed += not place.is_ok


class SplitResults:
    """Answers in one file, failures in another.

    Args:
        ok: Takes records that hold the answer that was asked for.
        failed: Takes the others.
    """

    def __init__(self, ok: ResultFile, failed: ResultFile) -> None:
        self.ok = ok
        self.failed = failed

    def find(self, key: str) -> Place | None:
        """Return where the record of a key is, in whichever file; None if there is none yet."""
        return self.ok.find(key) or self.failed.find(key)

    def append(self, record: Record) -> None:
        """Write a record down in its file.

        Raises:
            BatchError: it cannot be written.
        """
        (self.ok if is_ok(record) else self.failed).append(record)

    def sync(self) -> None:
        """Wait until the disk has everything."""
        self.ok.sync()
        self.failed.sync()

    def close(self) -> None:
        """Let others write the files."""
        self.ok.close()
        self.failed.close()


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield a file's lines with their ends. Memory: one line."""
    with path.open("rb") as file:
        yield from file


def tokens_in(path: Path) -> TokenCounts:
    """Return the tokens of all answers in an output file, which need not exist."""
    total = TokenCounts()
    if path.exists():
        for line in read_lines(path):
            record = orjson.loads(line)
            if is_ok(record):
                total.add(tokens_of(record["response"]["body"]))
    return total


def replace_file(path: Path, lines: Iterator[bytes]) -> None:
    """Put other lines in a file's place: all of them, or, after a crash, none.

    Raises:
        BatchError: they cannot be written.
    """
    temporary = path.with_name(f".{path.name}.new")
    try:
        with temporary.open("wb") as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise BatchError(f"cannot write {path}: {error.strerror}") from None


def _open_locked(path: Path) -> int:
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        raise ConfigError(f"{path} is being written by another run") from None
    return file


def _cut_tail(file: int) -> None:
    """Drop a last line that has no end. Mutates: the file."""
    size = end = os.fstat(file).st_size
    while end > 0:
        start = max(0, end - _TAIL_BYTES)
        found = os.pread(file, end - start, start).rfind(b"\n")
        if found >= 0:
            end = start + found + 1
            break
        end = start
    if end < size:
        os.ftruncate(file, end)


def _without_failures(path: Path, file: int) -> int:
    """Drop the records of failures. Returns: the file to go on with, locked."""
    kept = (
        line
        for number, line in enumerate(read_lines(path), 1)
        if _parse(line, 0, f"{path}, line {number},")[1].is_ok
    )
    replace_file(path, kept)
    renewed = _open_locked(path)
    os.close(file)
    return renewed


def _parse(line: bytes, offset: int, where: str) -> tuple[str, Place]:
    """Return the key of a line's record, and its place.

    Raises:
        ConfigError: it is no record.
    """
    try:
        record = orjson.loads(line)
        return key_of(record), Place(offset, len(line), is_ok(record))
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{where} is no result of a batch: {error}") from None
