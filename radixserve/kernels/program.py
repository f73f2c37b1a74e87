"""`Program`: a model, written down once in Python and run in C++."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve.kernels.native import extension, require

if TYPE_CHECKING:
    from radixserve.kernels.attention_plan import AttentionPlan
    from radixserve.kernels.packed_linear import PackedLinear
    from radixserve.kernels.view import View


class Program:
    """A tape of operations over fixed arrays, for any number of rows up to what these hold.

    Recording an operation checks that its arrays fit together, and keeps them alive. `cap` below is
    their number of rows, the capacity. Activations are float32, with rows any distance apart, so
    that they can be columns of a wider buffer. An operation's output shares no memory with what it
    reads, unless it says so.

    Every method that records raises ValueError, naming the operation, the argument that does not
    fit and what was got.
    """

    def __init__(self) -> None:
        require()
        self.native = extension.Program()

    def __len__(self) -> int:
        """Return how many operations are recorded."""
        return len(self.native)

    @property
    def capacity(self) -> int:
        """The most rows that `run` takes: the smallest `cap` of its arrays."""
        return self.native.capacity

    def embed(self, table: View, ids: View, out: View) -> None:
        """Record `out[i] = table[ids[i]]`.

        Args:
            table: [V, H], float32 or bfloat16.
            ids: [cap], int64.
            out: [cap, H].
        """
        self.native.embed(table.native, ids.native, out.native)

    def rms_norm(self, x: View, weight: View, eps: float, out: View) -> None:
        """Record `out = x / sqrt(mean(x * x) + eps) * weight`, over the innermost dimension.

        Args:
            x: [cap, W] or [cap, heads, W].
            weight: [W], float32 or bfloat16; copied now.
            eps: Added to the mean square.
            out: Of x's shape; may be x itself.
        """
        self.native.rms_norm(x.native, weight.native, eps, out.native)

    def linear(self, x: View, packed: PackedLinear, out: View, *, add: bool = False) -> None:
        """Record `out = x W^T + bias`, or `out += x W^T + bias`.

        Args:
            x: [cap, K].
            packed: Weights of shape (N, K).
            out: [cap, N].
            add: Whether to add to what `out` holds.
        """
        self.native.linear(x.native, packed.native, out.native, add)

    def linear_swiglu(self, x: View, packed: PackedLinear, out: View) -> None:
        """Record `out[:, i] = silu(gate_i) * up_i`.

        Args:
            x: [cap, K].
            packed: Weights of shape (2 I, K): the gates, then the ups.
            out: [cap, I].
        """
        self.native.linear_swiglu(x.native, packed.native, out.native)

    def rope(self, x: View, positions: View, cos: View, sin: View) -> None:
        """Record the rotation of each head, in place: its first half against its second.

        Args:
            x: [cap, heads, D].
            positions: [cap], int64.
            cos: [P, D / 2], float32.
            sin: [P, D / 2], float32.
        """
        self.native.rope(x.native, positions.native, cos.native, sin.native)

    def write_kv(
        self,
        k: View,
        v: View,
        slots: View,
        k_pool: View,
        v_pool: View,
        k_scale: View | None = None,
        v_scale: View | None = None,
    ) -> None:
        """Record that each row's K and V go to its slot: block * size + offset.

        A pool of int8 takes, of each head, the largest magnitude / 127 as its scale, and what it is
        multiplied by, rounded to the nearest.

        Args:
            k: [cap, heads, D].
            v: [cap, heads, D].
            slots: [cap], int64; no two equal.
            k_pool: [blocks, size, heads, D], float32, bfloat16 or int8, of any strides.
            v_pool: Like k_pool.
            k_scale: [blocks, size, heads, 1], float32, with pools of int8.
            v_scale: Like k_scale.
        """
        scales = _natives(k_scale, v_scale)
        self.native.write_kv(
            k.native, v.native, slots.native, k_pool.native, v_pool.native, *scales
        )

    def attention(
        self,
        q: View,
        k_pool: View,
        v_pool: View,
        plan: AttentionPlan,
        out: View,
        scale: float,
        k_scale: View | None = None,
        v_scale: View | None = None,
    ) -> None:
        """Record the attention of each row over its request, as `plan` has it when this runs.

        `run` raises ValueError if another batch is planned: other rows, heads or blocks.

        Args:
            q: [cap, query heads, D]; D is a multiple of 8.
            k_pool: [blocks, size, KV heads, D], float32, bfloat16 or int8. D is innermost; or, in
                blocks of a multiple of 16, the tokens are.
            v_pool: Of k_pool's shape and dtype, D innermost.
            plan: Set before each run.
            out: Of q's shape.
            scale: Factor on the scores.
            k_scale: [blocks, size, KV heads, 1], float32, with pools of int8.
            v_scale: Like k_scale.
        """
        scales = _natives(k_scale, v_scale)
        self.native.attention(
            q.native, k_pool.native, v_pool.native, plan.native, out.native, scale, *scales
        )

    def run(self, rows: int) -> None:
        """Do everything that is recorded, in order, for the first `rows` rows.

        The GIL is released meanwhile. Two threads that run one program take turns.

        Raises:
            ValueError: rows is below 0 or above the capacity.
            IndexError: an id, position or slot is out of range; the operation that found it and
                those after it were not done.
        Mutates: the first `rows` rows of every output, and the slots of the pools.
        """
        self.native.run(rows)

    def seconds(self) -> dict[str, float]:
        """Return, for each kind of operation, the seconds spent in it in all runs so far."""
        return dict(self.native.seconds())


def _natives(*views: View | None) -> tuple[extension.View | None, ...]:
    return tuple(None if view is None else view.native for view in views)
