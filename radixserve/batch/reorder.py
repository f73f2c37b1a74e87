"""The results once more, in the order of the requests."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from radixserve.batch.writer import replace_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from radixserve.batch.reader import LineFile
    from radixserve.batch.writer import ResultFile


def put_in_order(source: LineFile, results: ResultFile) -> None:
    """Rewrite an output file in the order of its input, at one stroke.

    Mutates: the file; `results`, which is still open on the old one, must be closed.
    Raises:
        BatchError: it cannot be written.
    """
    replace_file(results.path, _in_order(source, results))


def _in_order(source: LineFile, results: ResultFile) -> Iterator[bytes]:
    file = os.open(results.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for found in source.scan():
            place = results.find(found.parsed.key)
            if place is not None:
                yield os.pread(file, place.length, place.offset)
    finally:
        os.close(file)
