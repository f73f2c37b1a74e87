"""What came of a call, in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from radixserve.frontend.report import CallRecord

LABEL_LEN = 40
"""Characters of a text that are shown."""
MAX_CHILDREN = 12
"""Branches of one place that are drawn; the rest is counted."""


def outcome_of(call: CallRecord) -> str:
    """Return what came of a call, and what it cost."""
    usage = call.usage
    name = {"warm": "commit", "score": "score"}.get(call.kind, call.name or call.kind)
    value = "" if call.kind == "warm" else f" = {shortened(call.text)!r}"
    cost = f"{usage.input_tokens:,} in, {usage.cached_tokens:,} cached, {usage.output_tokens:,} out"
    return f"-> {name}{value}   {cost}"


def shortened(text: str) -> str:
    """Return the beginning of a text, on one line."""
    flat = " ".join(text.split())
    return flat if len(flat) <= LABEL_LEN else flat[: LABEL_LEN - 3] + "..."
