"""A sampler that can be told what a request says, whatever the model thinks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from radixserve.runtime.model_runner import ModelRunner
from radixserve.runtime.sampler import NO_MASKS, KnownTokens

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from radixserve.core.plan import SamplingState
    from radixserve.engine.engine_core import EngineCore
    from radixserve.runtime.sampler import RowError


class Script:
    """Puts token ids into the mouth of an engine; requests without a script are sampled.

    Args:
        core: Nothing but its sampler's entrance is changed.
        by_seed: Seed of a request -> what it says, token for token.
    """

    def __init__(self, core: EngineCore, by_seed: Mapping[int, Sequence[int]]) -> None:
        runner = core._runner
        assert isinstance(runner, ModelRunner)
        sampler = runner._sampler
        self._by_seed = by_seed
        self._begin = sampler.begin
        sampler.begin = self._scripted  # type: ignore[method-assign]

    def _scripted(
        self, logits: Tensor, states: Sequence[SamplingState], masks: Any = NO_MASKS
    ) -> KnownTokens:
        sampled = self._begin(logits, states, masks).result()
        lines = [self._line(state, token) for state, token in zip(states, sampled, strict=True)]
        return KnownTokens(lines)

    def _line(self, state: SamplingState, sampled: int | RowError) -> int | RowError:
        script = self._by_seed.get(-1 if state.params.seed is None else state.params.seed)
        if script is None or state.output_len >= len(script):
            return sampled
        return script[state.output_len]
