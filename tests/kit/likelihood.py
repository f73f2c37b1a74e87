"""How likely tokens are, computed without a cache, without blocks and without the runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tests.kit.dense_attention import DenseAttention

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from radixserve.engine.engine_core import EngineCore


def next_token_logprobs(core: EngineCore, ids: Sequence[int]) -> Tensor:
    """Return, for each place in `ids`, the log-probability of every token that may follow.

    Returns: [len(ids), vocab], float64.
    """
    model, limit = core._runner._model, core.info.vocab_size
    with torch.inference_mode():
        hidden = model(torch.tensor(ids), torch.arange(len(ids)), DenseAttention())
        return model.compute_logits(hidden)[:, :limit].double().log_softmax(-1)


def logprobs_of(core: EngineCore, ids: Sequence[int]) -> list[float]:
    """Return the log-probability of each of `ids` after those before it, from the second on."""
    rows = next_token_logprobs(core, ids)
    return [float(rows[place, token]) for place, token in enumerate(ids[1:])]
