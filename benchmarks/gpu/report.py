"""The rows as a table and as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from benchmarks.machine import describe_machine

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.gpu.rig import Rig
    from benchmarks.gpu.row import Row

HEADER = f"{'section':18}{'what':58}{'value':>10} {'unit':8}{'target':9}{'':5}"


def format_row(row: Row) -> str:
    """Return a line of the table."""
    value = "" if row.value is None else f"{row.value:.4g}"
    line = (
        f"{row.section:18}{row.what:58}{value:>10} {row.unit:8}{row.target:9}{row.verdict:5}"
        f"{row.note}"
    )
    return line.rstrip()


def summarise(rows: Sequence[Row]) -> str:
    """Return one line about all of them."""
    judged = [row for row in rows if row.passed is not None]
    missed = [f"{row.section}: {row.what}" for row in judged if not row.passed]
    line = f"{len(judged) - len(missed)} of {len(judged)} checks passed"
    return line if not missed else f"{line}; missed: {'; '.join(missed)}"


def has_passed(rows: Sequence[Row]) -> bool:
    """Whether nothing that was asked was missed."""
    return all(row.passed is not False for row in rows)


def write_json(path: Path, rows: Sequence[Row], rig: Rig, device: str) -> None:
    """Write everything that the table says.

    Args:
        path: A file, replaced if it is there.
        rows: Of all sections.
        rig: What they ran on.
        device: Its name, with the versions that matter.
    """
    report = {
        "machine": describe_machine(),
        "device": device,
        "is_dry_run": rig.is_dry,
        "passed": has_passed(rows),
        "rows": [asdict(row) for row in rows],
    }
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
