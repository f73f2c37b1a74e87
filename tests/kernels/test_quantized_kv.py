"""int8 KV as the kernels write it, against what its scale and its numbers are defined to be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from radixserve import kernels
from radixserve.attention.layer_kv import LayerKV, allocate_layers, quantize
from radixserve.kernels import Program, View
from tests.kernels.attention_mix import LAYOUTS
from tests.kernels.machines import VARIANTS, machine

if TYPE_CHECKING:
    from torch import Tensor

    from radixserve.attention.layer_kv import KVLayout

if not kernels.is_available():
    pytest.skip(kernels.why_not(), allow_module_level=True)


def write(rows: Tensor, layout: KVLayout, variant: str) -> LayerKV:
    """Write [tokens, heads, dim] as K, and twice as much as V, to the slots from 3 on."""
    (layer,) = allocate_layers(1, (4, 16, *rows.shape[1:]), torch.int8, layout)
    assert layer.k_scale is not None
    assert layer.v_scale is not None
    program = Program()
    slots = torch.arange(3, 3 + len(rows))
    program.write_kv(
        View(rows),
        View(rows * 2),
        View(slots),
        View(layer.k),
        View(layer.v),
        View(layer.k_scale[..., None]),
        View(layer.v_scale[..., None]),
    )
    with machine(variant=variant):
        program.run(len(rows))
    return layer


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("head_dim", [8, 24, 64])
def test_numbers_and_scales_are_those_of_the_definition(
    head_dim: int, layout: KVLayout, variant: str
) -> None:
    generator = torch.Generator().manual_seed(head_dim)
    rows = torch.randn(40, 2, head_dim, generator=generator)
    rows *= torch.logspace(-44, 37, 40)[:, None, None]
    rows[5] = 0.0
    rows[6, 0, 3], rows[7, 1, 2], rows[8, 0, 1] = torch.nan, torch.inf, -torch.inf
    rows[9] = torch.arange(head_dim) - 2.5  # ties, once the largest is 127
    rows[9, :, 0] = 127.0

    layer = write(rows, layout, variant)

    for part, scale, factor in ((layer.k, layer.k_scale, 1), (layer.v, layer.v_scale, 2)):
        assert scale is not None
        codes, scales = quantize(rows * factor)
        assert torch.equal(part.flatten(0, 1)[3:43], codes)
        torch.testing.assert_close(
            scale.flatten(0, 1)[3:43], scales, rtol=0, atol=0, equal_nan=True
        )
        assert not part.flatten(0, 1)[[*range(3), *range(43, 64)]].any()


def test_a_value_is_off_by_half_a_step_at_most() -> None:
    rows = torch.randn(100, 3, 64, generator=torch.Generator().manual_seed(0))

    codes, scales = quantize(rows)

    off = (codes * scales[..., None] - rows).abs()
    assert bool((off <= scales[..., None] * 0.5001).all())
    assert torch.equal(codes.abs().amax(dim=-1), torch.full((100, 3), 127, dtype=torch.int8))


def test_what_is_not_finite_has_a_scale_that_is_no_number() -> None:
    rows = torch.zeros(3, 8)
    rows[0, 3], rows[1, 5] = torch.nan, torch.inf

    codes, scales = quantize(rows)

    assert not codes.any()
    assert scales.isnan().tolist() == [True, True, False]
