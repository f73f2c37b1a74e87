"""How likely tokens are, computed in plain torch without a cache, without blocks and without the
runtime."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from radixserve.models.loader import load_model
from tests.kit.dense_attention import DenseAttention

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor

    from radixserve.engine.engine_core import EngineCore
    from radixserve.models.decoder import CausalLM


def next_token_logits(core: EngineCore, ids: Sequence[int]) -> Tensor:
    """Return, for each place in `ids`, the logits of every token that may follow.

    Returns: [len(ids), vocab], float32.
    """
    model = _plain_model(core.info.folder)
    with torch.inference_mode():
        hidden = model(torch.tensor(ids), torch.arange(len(ids)), DenseAttention())
        return model.compute_logits(hidden)[:, : core.info.vocab_size]


@lru_cache(maxsize=2)
def _plain_model(folder: Path) -> CausalLM:
    return load_model(folder, dtype=torch.float32).model


def next_token_logprobs(core: EngineCore, ids: Sequence[int]) -> Tensor:
    """Return, for each place in `ids`, the log-probability of every token that may follow.

    Returns: [len(ids), vocab], float64.
    """
    return next_token_logits(core, ids).double().log_softmax(-1)


def logprobs_of(core: EngineCore, ids: Sequence[int]) -> list[float]:
    """Return the log-probability of each of `ids` after those before it, from the second on."""
    rows = next_token_logprobs(core, ids)
    return [float(rows[place, token]) for place, token in enumerate(ids[1:])]
