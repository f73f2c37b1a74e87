"""How long a step would take on a machine that is not there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from radixserve.core.plan import StepPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """Seconds as a linear function of what a step computes and reads.

    The defaults are those of a model of 8 billion parameters with grouped heads, in 16 bit, on one
    accelerator with 400 Tflop/s and 3 TB/s: 16 Gflop a token, 16 GB of weights to read for each
    step of decoding, 128 KiB of KV a token.
    """

    prefill_token_s: float = 40e-6
    """For each prompt token computed."""
    decode_step_s: float = 8e-3
    """For each step in which somebody decodes, however many they are."""
    kv_token_s: float = 43e-9
    """For each token of KV that a row reads."""

    def seconds(self, plan: StepPlan, scale: int = 1) -> float:
        """Return how long a step takes.

        Args:
            scale: Real tokens that each token of the plan stands for. A step that decodes stands
                for as many steps.
        Complexity: O(rows).
        """
        prefilled = kv_read = 0
        decodes = False
        for req in plan.reqs:
            kv_read += req.start + req.extend_len
            if req.extend_len == 1 and req.sampling is not None and req.sampling.output_len:
                decodes = True
            else:
                prefilled += req.extend_len
        step_s = self.decode_step_s if decodes else 0.0
        step_s += prefilled * self.prefill_token_s + kv_read * scale * self.kv_token_s
        return step_s * scale
