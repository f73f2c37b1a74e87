"""The order in which waiting Reqs are considered. Pure functions over the queue.

A policy gets the queue in *queue order* (higher priority first, then arrival) and returns a
permutation of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from radixserve.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from radixserve.core.req import Req

RANKED_WINDOW = 128
"""Waiting Reqs, oldest first, that are matched against the tree in one step. Those behind keep
their queue order, so that a step's cost does not grow with the queue."""


class QueuePolicy(Protocol):
    """How a policy is called."""

    def __call__(
        self,
        waiting: Sequence[Req],
        *,
        cached_len: Callable[[Req], int],
        is_aged: Callable[[Req], bool],
    ) -> list[Req]:
        """Return `waiting` in the order in which to admit.

        Args:
            cached_len: Tokens of a Req that the tree holds now.
            is_aged: Whether a Req has waited longer than it should.
        """


def first_come_first_served(
    waiting: Sequence[Req],
    *,
    cached_len: Callable[[Req], int],
    is_aged: Callable[[Req], bool],
) -> list[Req]:
    """Queue order as it is. Complexity: O(n)."""
    del cached_len, is_aged
    return list(waiting)


def longest_prefix_first(
    waiting: Sequence[Req],
    *,
    cached_len: Callable[[Req], int],
    is_aged: Callable[[Req], bool],
) -> list[Req]:
    """Within a priority: the aged ones in queue order, then the longest cached prefix first.

    Ageing bounds the wait. Once a Req is aged, only Reqs of higher priority and older aged ones go
    before it, and admission never passes over a Req that does not fit, so it is next after them.

    Complexity: O(window log window) and `RANKED_WINDOW` matches.
    """

    def rank(req: Req) -> tuple[int, bool, int]:
        aged = is_aged(req)
        return (-req.spec.priority, not aged, 0 if aged else -cached_len(req))

    return sorted(waiting[:RANKED_WINDOW], key=rank) + list(waiting[RANKED_WINDOW:])


POLICIES: dict[str, QueuePolicy] = {
    "fcfs": first_come_first_served,
    "lpm": longest_prefix_first,
}


def find_policy(name: str) -> QueuePolicy:
    """Return the policy of that name.

    Raises:
        ConfigError: there is none.
    """
    try:
        return POLICIES[name]
    except KeyError:
        raise ConfigError(
            f"schedule_policy must be one of {', '.join(sorted(POLICIES))}; got {name!r}"
        ) from None
