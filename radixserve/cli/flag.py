"""One command-line flag that names a setting."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING

from radixserve.cli.byte_count import parse_byte_count
from radixserve.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable


def read_byte_count(text: str) -> int:
    """Return the bytes of a flag's value, or tell argparse what is wrong with it."""
    try:
        return parse_byte_count(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag. `read` turns its text into the setting's value; the settings check the range."""

    name: str
    key: str
    meaning: str
    read: Callable[[str], object] = str
    metavar: str = "N"
    choices: tuple[str, ...] | None = None
    constant: bool | None = None
    """What a flag without a value sets its key to; None: the flag takes a value."""
    repeats: bool = False
    """Each further use adds one to a list."""

    @property
    def dest(self) -> str:
        """Its attribute in the parsed arguments."""
        return self.name.removeprefix("--").replace("-", "_")
