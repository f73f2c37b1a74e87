"""`Row`: one line of the report, and what it takes to pass."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure, with its target if it has one."""

    what: str
    value: float | None = None
    unit: str = ""
    target: str = ""
    passed: bool | None = None
    """None where nothing was asked of it."""
    is_timed: bool = False
    """Whether it tells about the machine, so that a dry run cannot judge it."""
    note: str = ""
    section: str = ""
    """Set by whoever runs the section."""

    @property
    def verdict(self) -> str:
        """One word."""
        return {True: "pass", False: "FAIL", None: "-"}[self.passed]


class SkippedError(Exception):
    """A section, or the rest of one, that cannot run here; says why."""


def told(what: str, value: float, unit: str, *, note: str = "") -> Row:
    """Return a figure of which nothing is asked."""
    return Row(what=what, value=value, unit=unit, is_timed=True, note=note)


def at_most(what: str, value: float, unit: str, bound: float, *, note: str = "") -> Row:
    """Return a check that any machine must pass. NaN passes none."""
    return Row(
        what=what, value=value, unit=unit, target=f"<= {bound:g}", passed=value <= bound, note=note
    )


def at_least(what: str, value: float, unit: str, bound: float, *, note: str = "") -> Row:
    """Return a check that any machine must pass."""
    return Row(
        what=what, value=value, unit=unit, target=f">= {bound:g}", passed=value >= bound, note=note
    )


def fast_enough(what: str, value: float, unit: str, bound: float, *, note: str = "") -> Row:
    """Return a figure that only a GPU is asked to reach."""
    return Row(
        what=what,
        value=value,
        unit=unit,
        target=f">= {bound:g}",
        passed=value >= bound,
        is_timed=True,
        note=note,
    )
