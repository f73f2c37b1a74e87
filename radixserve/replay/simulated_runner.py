"""A runner without a model: answers at once, and says how long a real one would have taken."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve.core.plan import StepResult
from radixserve.replay.scaled_prompt import output_token

if TYPE_CHECKING:
    from radixserve.core.plan import ScheduledReq, StepPlan
    from radixserve.replay.cost_model import CostModel
    from radixserve.types import TokenId


class SimulatedRunner:
    """Executes plans in simulated time. Names of Reqs are the numbers of requests.

    Args:
        scale: Real tokens that each token stands for.
    """

    def __init__(self, cost_model: CostModel, scale: int) -> None:
        self._cost_model = cost_model
        self._scale = scale
        self.now_s = 0.0
        self.busy_s = 0.0

    def execute(self, plan: StepPlan) -> StepResult:
        """Let the time pass that a plan takes, and return tokens that nobody else has."""
        seconds = self._cost_model.seconds(plan, self._scale)
        self.now_s += seconds
        self.busy_s += seconds
        return StepResult(plan.step, tuple(map(_next_token, plan.reqs)))

    def idle_until(self, now_s: float) -> None:
        """Let time pass without work."""
        self.now_s = max(self.now_s, now_s)


def _next_token(req: ScheduledReq) -> TokenId | None:
    return None if req.sampling is None else output_token(int(req.req_id))
