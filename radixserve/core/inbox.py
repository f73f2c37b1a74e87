"""What may be put in a scheduler's inbox at any time, to be done at the next `schedule`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from radixserve.core.req import ReqSpec

if TYPE_CHECKING:
    from radixserve.types import FinishReason, ReqId


@dataclass(frozen=True, slots=True)
class End:
    """End this Req for this reason."""

    req_id: ReqId
    reason: FinishReason


InboxEntry: TypeAlias = ReqSpec | End | Callable[[], None]
"""A Req that arrives, one that is to end, or something to be done while no plan is in flight."""
