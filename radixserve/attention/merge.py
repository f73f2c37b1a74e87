"""Attention over one part of the keys, and how two parts become attention over both.

With each part's log-sum-exp kept beside its output, `merge` is exact: the parts' outputs weigh as
much as their sums of exponentials do. The base is 2, as in FlashInfer's kernels.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from torch import Tensor


class Partial(NamedTuple):
    """Attention of some rows over a part of their keys."""

    out: Tensor
    """[rows, num_qo_heads, head_dim]; 0 where a row sees no key."""
    lse: Tensor
    """[rows, num_qo_heads]: base-2 logarithm of the sum of exponentials; -inf for no key."""


def attend(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool) -> Partial:
    """Return the attention of one segment's rows over its keys, in float32 or wider.

    Causal means bottom-right aligned: the last row sees every key.

    Args:
        q: [rows, num_qo_heads, head_dim].
        k: [keys, num_kv_heads, head_dim]; there may be no key.
        v: [keys, num_kv_heads, head_dim].
        scale: Factor on the scores.
        causal: Whether a row's later keys are hidden from it.
    Complexity: O(rows * keys * heads * head_dim).
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    num_rows, num_heads, head_dim = q.shape
    num_keys, num_kv_heads = k.shape[:2]
    grouped = q.to(dtype).view(num_rows, num_kv_heads, -1, head_dim)
    scores = torch.einsum("rhgd,khd->rhgk", grouped, k.to(dtype)) * scale
    if causal:
        last_seen = torch.arange(num_rows, device=q.device) + num_keys - num_rows
        is_hidden = torch.arange(num_keys, device=q.device) > last_seen[:, None]
        scores = scores.masked_fill(is_hidden[:, None, None], -math.inf)
    lse = scores.logsumexp(dim=-1)
    weights = torch.exp(scores - lse.masked_fill(lse == -math.inf, 0.0)[..., None])
    out = torch.einsum("rhgk,khd->rhgd", weights, v.to(dtype))
    return Partial(out.reshape(q.shape), lse.reshape(num_rows, num_heads) / math.log(2.0))


def merge(a: Partial, b: Partial) -> Partial:
    """Return the attention over the keys of both; where neither has a key, 0 and -inf."""
    top = torch.maximum(a.lse, b.lse)
    base = top.masked_fill(top == -math.inf, 0.0)  # -inf - -inf would be NaN
    weight_a, weight_b = torch.exp2(a.lse - base), torch.exp2(b.lse - base)
    total = weight_a + weight_b
    divisor = total.masked_fill(total == 0, 1.0)
    out = a.out * (weight_a / divisor)[..., None] + b.out * (weight_b / divisor)[..., None]
    return Partial(out, top + torch.log2(divisor))
