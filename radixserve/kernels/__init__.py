"""Native kernels for a CPU: matrix products, row operations and paged attention, written in C++.

    view = View(tensor)                      an array that a kernel reads or writes
    packed = PackedLinear(View(weight), "float32")
    program = Program()                      the model, written down once
    program.linear(x, packed, out)
    program.run(rows=5)                      all of it, for the first 5 rows, without the GIL

Every row's result depends on that row's inputs alone, to the bit: not on the other rows of the
batch, nor on the number of threads. Importing this package needs neither torch nor numpy, and works
where the extension was not built: `is_available` tells.
"""

from radixserve.kernels.attention_plan import AttentionPlan
from radixserve.kernels.draw import NOT_FINITE, NOTHING_LEFT, DrawRules, draw
from radixserve.kernels.machine import (
    measure_peak_flops,
    measure_read_bandwidth,
    num_threads,
    set_num_threads,
    set_variant,
    variant,
    variants,
)
from radixserve.kernels.native import is_available, why_not
from radixserve.kernels.packed_linear import PackedLinear
from radixserve.kernels.program import Program
from radixserve.kernels.view import View

__all__ = [
    "NOTHING_LEFT",
    "NOT_FINITE",
    "AttentionPlan",
    "DrawRules",
    "PackedLinear",
    "Program",
    "View",
    "draw",
    "is_available",
    "measure_peak_flops",
    "measure_read_bandwidth",
    "num_threads",
    "set_num_threads",
    "set_variant",
    "variant",
    "variants",
    "why_not",
]
