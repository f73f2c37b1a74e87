"""How likely tokens were, by the model's own distribution."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from radixserve.device.transfer import to_device
from radixserve.types import TokenLogprob

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from radixserve.types import TokenId


_LOW_BITS = 2**32 - 1


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
    wanted = to_device(torch.tensor(tokens), rows.device)
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
    best = torch.topk(_ranked(rows), min(num_top, rows.shape[1]), dim=1).values
    ids = rows.shape[1] - 1 - (best & _LOW_BITS)
    values = (rows.gather(1, ids) - totals[:, None]).tolist()
    return [
        tuple(zip(row, logprobs, strict=True))
        for row, logprobs in zip(ids.tolist(), values, strict=True)
    ]


def _ranked(rows: Tensor) -> Tensor:
    """Return whole numbers in the order of logits and, among equals, of falling ids: no two are
    alike, so that which of them are the largest is not left to chance."""
    bits = (rows + 0.0).view(torch.int32)  # a negative zero is a zero
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    falling = torch.arange(rows.shape[1] - 1, -1, -1, device=rows.device)
    return (ordered.long() << 32) | falling
