"""How likely tokens were, by the model's own distribution."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from radixserve.types import TokenLogprob

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from radixserve.types import TokenId


def token_logprobs(
    logits: Tensor, tokens: Sequence[TokenId], num_top: int, *, vocab_limit: int
) -> list[TokenLogprob]:
    """Return, for each row, the log-probability of one token and of the likeliest ones.

    Equal logits are ranked by id, the lower first, as the sampler does.

    Args:
        logits: [R, vocab], float32, as the model gave them.
        tokens: R of them.
        num_top: Likeliest tokens told beside each; 0 tells none.
        vocab_limit: Ids from here on only pad the output head and have no probability.
    Complexity: O(R * vocab).
    """
    rows = logits[:, :vocab_limit]
    totals = torch.logsumexp(rows, dim=1)
    wanted = torch.tensor(tokens, device=rows.device)
    chosen = rows.gather(1, wanted[:, None])
    is_before = torch.arange(rows.shape[1], device=rows.device) < wanted[:, None]
    ranks = ((rows > chosen) | ((rows == chosen) & is_before)).sum(dim=1) + 1
    tops = _tops(rows, totals, num_top)
    values = (chosen[:, 0] - totals).tolist()
    return [
        TokenLogprob(token, value, rank, top)
        for token, value, rank, top in zip(tokens, values, ranks.tolist(), tops, strict=True)
    ]


def _tops(rows: Tensor, totals: Tensor, num_top: int) -> list[tuple[tuple[TokenId, float], ...]]:
    """Return the likeliest tokens of each row, likeliest first, the lower id before its equal."""
    if num_top == 0:
        return [()] * len(rows)
    best = torch.topk(rows, min(num_top, rows.shape[1]), dim=1)
    values = (best.values - totals[:, None]).tolist()
    return [
        tuple(sorted(zip(ids, logprobs, strict=True), key=lambda pair: (-pair[1], pair[0])))
        for ids, logprobs in zip(best.indices.tolist(), values, strict=True)
    ]
