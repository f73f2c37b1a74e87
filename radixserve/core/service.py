"""How much each tenant has been served, for the policy that shares fairly."""

from __future__ import annotations

OUTPUT_WEIGHT = 4.0
"""An output token counts for this many prompt tokens: each takes a row of a step of its own."""


class AttainedService:
    """Weighted tokens computed for each tenant that has live Reqs.

    A tenant that comes, or comes back, starts level with the least served one that is here:
    silence is not saved up, and a newcomer does not shut the others out.
    Source: virtual time in fair queueing; the Virtual Token Counter (arXiv:2401.00588).
    """

    __slots__ = ("_attained", "_live")

    def __init__(self) -> None:
        self._attained: dict[str, float] = {}
        self._live: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<AttainedService {self._attained}>"

    def attained(self, tenant: str) -> float:
        """Return a tenant's weighted tokens."""
        return self._attained.get(tenant, 0.0)

    def arrive(self, tenant: str) -> None:
        """A Req of the tenant has come."""
        if tenant not in self._live:
            level = min(self._attained.values(), default=0.0)
            self._attained[tenant] = level
        self._live[tenant] = self._live.get(tenant, 0) + 1

    def leave(self, tenant: str) -> None:
        """A Req of the tenant has ended; with the last one the tenant is forgotten."""
        self._live[tenant] -= 1
        if not self._live[tenant]:
            del self._live[tenant], self._attained[tenant]

    def serve(self, tenant: str, num_computed: int, num_output: int) -> None:
        """Count a row of a step: tokens computed, and tokens produced.

        An output token is computed too, in the step after, and must not count twice.
        """
        self._attained[tenant] += num_computed + (OUTPUT_WEIGHT - 1) * num_output
