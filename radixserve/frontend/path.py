"""Where in a program a call stands: names and numbers, never time.

    react[3].fork[1].gen('step')

The path of a call depends on the program and its input alone, so seeds, records and hints that
hang on it do not depend on which branch happens to finish first.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Path:
    """A program's run, or a branch of it."""

    steps: tuple[str, ...]
    """``react[3]``, ``fork[1]``, ..."""

    def child(self, kind: str, index: int) -> Path:
        """Return the path of a branch."""
        return Path((*self.steps, f"{kind}[{index}]"))

    def call(self, kind: str, name: str | None, index: int) -> str:
        """Return the path of a call.

        Args:
            index: How many calls came before it on this branch, for calls without a name.
        """
        label = repr(name) if name is not None else f"#{index}"
        return f"{self}.{kind}({label})"

    def __str__(self) -> str:
        return ".".join(self.steps)


def seed_of(root_seed: int, call: str, index: int, attempt: int = 0) -> int:
    """Return the seed of a call: a function of its place, below 2**63.

    Args:
        root_seed: The program's.
        call: The call's path.
        index: Its number on its branch: a name may be used twice.
        attempt: 0, and more for each retry.
    """
    text = f"{root_seed}|{call}|{index}|{attempt}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1
