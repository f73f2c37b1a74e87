"""Policies by name, and a user's own by import path."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from radixserve.core.policies.arrival import FirstComeFirstServed, PriorityThenArrival
from radixserve.core.policies.fair import LeastAttainedService
from radixserve.core.policies.longest_prefix import LongestPrefixFirst
from radixserve.core.policies.sweep import AGED_EVERY, DepthFirst, Sweep
from radixserve.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve.core.policies.protocol import QueuePolicy

POLICIES: dict[str, Callable[[int], QueuePolicy]] = {
    "fcfs": lambda _: FirstComeFirstServed(),
    "priority": lambda _: PriorityThenArrival(),
    "lpm": lambda _: LongestPrefixFirst(),
    "dfs": lambda _: DepthFirst(),
    "sweep": Sweep,
    "fair": LeastAttainedService,
}


def make_policy(name: str, *, aged_every: int = AGED_EVERY) -> QueuePolicy:
    """Return a new policy.

    Args:
        name: A key of `POLICIES`, or `package.module:ClassName` for a class of the user's own
            that can be called without arguments.
        aged_every: For the policies that bound the wait.
    Raises:
        ConfigError: there is no such policy; names those that there are.
    """
    if name in POLICIES:
        return POLICIES[name](aged_every)
    module, colon, attribute = name.partition(":")
    if not colon:
        known = ", ".join(POLICIES)
        raise ConfigError(
            f"schedule_policy must be one of {known}, or package.module:ClassName; got {name!r}"
        )
    try:
        policy: QueuePolicy = getattr(importlib.import_module(module), attribute)()
    except (ImportError, AttributeError, TypeError) as error:
        raise ConfigError(f"schedule_policy: {name!r} cannot be used: {error}") from error
    return policy
