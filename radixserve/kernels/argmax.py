"""`argmax`: the next token of greedy rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve.kernels.native import extension, require

if TYPE_CHECKING:
    from radixserve.kernels.view import View


def argmax(logits: View, *, rows: int, limit: int, out_ids: View, out_finite: View) -> None:
    """Find the first place of the largest logit of each row; a NaN is larger than every number.

    Args:
        logits: [cap, V], float32.
        rows: How many rows, from the first.
        limit: Only [0, limit) of a row is looked at.
        out_ids: [cap], int64: the places.
        out_finite: [cap], uint8: 1 where the largest logit is finite.
    Raises:
        ValueError: the arrays do not fit together, or have not so many rows or columns.
    Mutates: the first `rows` of `out_ids` and `out_finite`.
    """
    require()
    extension.argmax(logits.native, rows, limit, out_ids.native, out_finite.native)
