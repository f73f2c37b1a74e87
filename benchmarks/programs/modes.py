"""The ways in which one workload is run: what the cache, the hints and the frontend bring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import radixserve as rs

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve.frontend import Backend


@dataclass(frozen=True, slots=True)
class Mode:
    """One way to run a workload."""

    name: str
    has_cache: bool
    """Which of the two servers it is sent to."""
    connect: Callable[[str], Backend]
    """From a server's address to the backend."""
    prefix_order: bool
    """Whether programs that begin alike are begun one after the other."""


MODES = (
    Mode("cache", has_cache=True, connect=rs.connect, prefix_order=True),
    Mode(
        "no hints",
        has_cache=True,
        connect=lambda url: rs.connect(url, sends_hints=False),
        prefix_order=True,
    ),
    Mode(
        "openai",
        has_cache=True,
        connect=lambda url: rs.openai(url, continues_turns=True),
        prefix_order=False,
    ),
    Mode("no cache", has_cache=False, connect=rs.connect, prefix_order=True),
)
"""`openai` sends the same calls as text through the OpenAI-compatible API, in the order of the
items: what a script does that knows nothing of the server."""
