"""Whoever asks, as far as a server needs to know."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Caller:
    """Whoever asks, by the name of the key."""

    name: str = ""
    """Empty where no key is asked for."""
    is_admin: bool = False
    cache_owner: str = ""
    """Goes into the cache's namespace: callers of different owners never share KV."""


ANYBODY = Caller()
