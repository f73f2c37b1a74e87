"""What of a file is left to do, and in which order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from radixserve.batch.line import LineFault
from radixserve.batch.order import FileOrder, PrefixOrder
from radixserve.batch.record import fault_record

if TYPE_CHECKING:
    from typing import TypeAlias

    from radixserve.batch.order import LineOrder
    from radixserve.batch.reader import LineFile
    from radixserve.batch.report import BatchReport
    from radixserve.batch.writer import ResultSink

    OrderName: TypeAlias = Literal["prefix", "file"]


def make_order(source: LineFile, name: OrderName) -> LineOrder:
    """Return an empty order of a file's lines, by its name."""
    return PrefixOrder(source) if name == "prefix" else FileOrder(source)


def plan_lines(source: LineFile, order: LineOrder, sink: ResultSink, report: BatchReport) -> None:
    """Read the file through: lines to run go to `order`, faults are written down at once.

    Lines that `sink` has a record of are counted and left out.

    Mutates: `order`, `sink` and `report`. Memory: does not grow with the file.
    Raises:
        BatchError: a fault cannot be written down.
    """
    for found in source.scan():
        line = found.parsed
        report.num_lines += 1
        known = sink.find(line.key)
        if known is not None:
            report.know(is_good=known.is_ok)
        elif isinstance(line, LineFault):
            record = fault_record(line)
            sink.append(record)
            report.add(record)
        else:
            order.add(found.ref, line)
