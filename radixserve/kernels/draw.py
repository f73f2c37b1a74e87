"""`draw`: the next token of each row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from radixserve.kernels.native import extension, require

if TYPE_CHECKING:
    from radixserve.kernels.view import View

NOTHING_LEFT = -1
"""In place of an id: every logit of the row is -inf."""
NOT_FINITE = -2
"""In place of an id: the row has a NaN or +inf."""


@dataclass(frozen=True, slots=True)
class DrawRules:
    """How each row's id is drawn; `cap` is the number of rows that there is room for."""

    temperature: View
    """[cap], float32; below 1e-5 the first place of the largest logit is taken."""
    min_p: View
    """[cap], float32; 0 lets every id pass."""
    top_k: View
    """[cap], int64; 0 lets every id pass."""
    top_p: View
    """[cap], float64; 1 lets every id pass."""
    u: View
    """[cap], float64, in [0, 1)."""


def draw(logits: View, *, rows: int, limit: int, rules: DrawRules, out_ids: View) -> None:
    """Draw one id a row.

    Weights are e^((logit - best) / temperature). Of the ids whose weight is at least `min_p` of the
    largest, the `top_k` heaviest stay, and of them the fewest that reach `top_p` of their sum;
    equal weights go to the lower id. Ascending by id, the first is drawn whose running sum exceeds
    `u` of the total.

    Args:
        logits: [cap, V], float32.
        rows: How many rows, from the first.
        limit: Only [0, limit) of a row is looked at.
        rules: One a row.
        out_ids: [cap], int64: ids, or NOTHING_LEFT or NOT_FINITE.
    Raises:
        ValueError: the arrays do not fit together, or have not so many rows or columns.
    Mutates: the first `rows` of `out_ids`.
    Complexity: O(rows * limit), on all threads.
    """
    require()
    extension.draw(
        logits.native,
        rows,
        limit,
        rules.temperature.native,
        rules.min_p.native,
        rules.top_k.native,
        rules.top_p.native,
        rules.u.native,
        out_ids.native,
    )
