"""A step while it is being decided."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from radixserve.core.plan import BlockCopy, BlockSwap
    from radixserve.core.req import Req
    from radixserve.types import ReqId


@dataclass(slots=True)
class Draft:
    """Who takes part with how much, and what must move before. Written by `StepBuilder`."""

    shares: dict[Req, int] = field(default_factory=dict)
    """Tokens each Req computes."""
    copies: list[BlockCopy] = field(default_factory=list)
    swap_outs: dict[Req, BlockSwap] = field(default_factory=dict)
    swap_ins: list[BlockSwap] = field(default_factory=list)
    admitted: set[Req] = field(default_factory=set)
    forked: set[ReqId] = field(default_factory=set)
    """Whose private blocks are copied from: they must not be given up in this step."""
    has_preempted: bool = False
