"""`run_sections`: one section after the other, for as long as there is time."""

from __future__ import annotations

import gc
import time
import traceback
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import torch

from benchmarks.gpu.row import Row, SkippedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from benchmarks.gpu.rig import Rig


class Section(Protocol):
    """One thing that is checked or measured."""

    @property
    def name(self) -> str: ...

    def run(self, rig: Rig) -> Iterator[Row]:
        """Yield the rows as they are found."""
        ...


@dataclass(frozen=True, slots=True)
class Budget:
    """How long all sections may take. A row that has begun is not interrupted."""

    seconds: float
    now: Callable[[], float] = time.monotonic

    def run_sections(self, sections: Sequence[Section], rig: Rig) -> Iterator[Row]:
        """Yield every section's rows, and a row for each that failed or was left out."""
        deadline = self.now() + self.seconds
        for section in sections:
            for row in self._rows(section, rig, deadline):
                yield replace(row, section=section.name)
            _free_memory()

    def _rows(self, section: Section, rig: Rig, deadline: float) -> Iterator[Row]:
        if self.now() >= deadline:
            yield Row(what="skipped", note="the time is used up")
            return
        begin = self.now()
        try:
            for row in section.run(rig):
                yield replace(row, passed=None) if rig.is_dry and row.is_timed else row
                if self.now() >= deadline:
                    yield Row(what="cut short", note="the time is used up")
                    break
        except SkippedError as error:
            yield Row(what="skipped", note=str(error))
        except Exception as error:  # whatever it is, the other sections can still tell something
            traceback.print_exc()
            yield Row(what="failed", passed=False, note=f"{type(error).__name__}: {error}")
        yield Row(what="time of this section", value=self.now() - begin, unit="s", is_timed=True)


def _free_memory() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
