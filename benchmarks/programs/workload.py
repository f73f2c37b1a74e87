"""`Workload`: a program and the items that it runs over; and where these are read from."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve.frontend import Program

DEFAULT_DATA = Path(__file__).parents[3] / "shared/data"


@dataclass(frozen=True, slots=True)
class Workload:
    """One program over many items."""

    name: str
    program: Program[Any, Any]
    items: Sequence[Any]
    about: str
    """What it is, in a few words."""


@dataclass(frozen=True, slots=True)
class Source:
    """The folder of public data, and how much of it is taken.

    Attributes:
        folder: Has few_shot/, programs/, agent_text/ and constrained/.
        scale: Factor on the number of items.
    """

    folder: Path
    scale: float = 1.0

    def count(self, num_items: int) -> int:
        """Return how many items a workload takes that has `num_items` by default."""
        return max(1, round(num_items * self.scale))

    def rows(self, path: str) -> list[dict[str, Any]]:
        """Return the rows of a gzipped JSON Lines file.

        Raises:
            FileNotFoundError: it is not there; the message says how to name the folder.
        """
        with gzip.open(self._found(path), "rt", encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]

    def texts(self, path: str) -> Any:
        """Return what a JSON file holds.

        Raises:
            FileNotFoundError: it is not there; the message says how to name the folder.
        """
        return json.loads(self._found(path).read_text(encoding="utf-8"))

    def _found(self, path: str) -> Path:
        file = self.folder / path
        if not file.exists():
            raise FileNotFoundError(f"{file} is not there: name the data's folder with --data")
        return file
