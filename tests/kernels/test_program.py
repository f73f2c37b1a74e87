"""The recorded operations: what they compute, and what they refuse."""

from __future__ import annotations

import gc
import threading
from typing import TYPE_CHECKING

import pytest
import torch
from torch.nn import functional

from radixserve import kernels
from radixserve.kernels import PackedLinear, Program, View
from tests.kernels.machines import VARIANTS, machine

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

if not kernels.is_available():
    pytest.skip(kernels.why_not(), allow_module_level=True)

CAPACITY = 12
ROWS = 9


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [3, 16, 50])
def test_embed_looks_rows_up(variant: str, dtype: torch.dtype, width: int) -> None:
    table = torch.randn(7, width).to(dtype)
    ids = torch.randint(7, (CAPACITY,))
    out = torch.zeros(CAPACITY, width)
    program = Program()
    program.embed(View(table), View(ids), View(out))
    with machine(variant=variant):
        program.run(ROWS)
    assert torch.equal(out[:ROWS], table[ids[:ROWS]].float())
    assert not out[ROWS:].any()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("width", [1, 8, 64, 67, 576])
def test_rms_norm_is_that_of_float64_to_rounding(variant: str, width: int) -> None:
    x, weight = 3 * torch.randn(CAPACITY, width), torch.randn(width)
    out = torch.zeros(CAPACITY, width)
    program = Program()
    program.rms_norm(View(x), View(weight), 1e-5, View(out))
    with machine(variant=variant):
        program.run(ROWS)
    wanted = functional.rms_norm(x.double(), (width,), weight.double(), 1e-5)
    torch.testing.assert_close(out[:ROWS].double(), wanted[:ROWS], rtol=2e-6, atol=1e-7)
    assert not out[ROWS:].any()


@pytest.mark.parametrize("variant", VARIANTS)
def test_rms_norm_goes_over_each_head_and_in_place(variant: str) -> None:
    buffer = torch.randn(CAPACITY, 5, 20)
    heads = buffer[:, 1:4]
    weight = torch.randn(20).bfloat16()
    wanted = functional.rms_norm(heads.double(), (20,), weight.double(), 1e-6)
    before = buffer.clone()
    program = Program()
    program.rms_norm(View(heads), View(weight), 1e-6, View(heads))
    with machine(variant=variant):
        program.run(CAPACITY)
    torch.testing.assert_close(heads.double(), wanted, rtol=2e-6, atol=1e-7)
    assert torch.equal(buffer[:, [0, 4]], before[:, [0, 4]])


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("head_dim", [2, 16, 36, 64, 128])
def test_rope_turns_the_first_half_of_a_head_against_the_second(
    variant: str, head_dim: int
) -> None:
    buffer = torch.randn(CAPACITY, 4, head_dim)
    heads = buffer[:, :3]
    positions = torch.randint(40, (CAPACITY,))
    angles = torch.rand(40, head_dim // 2) * 100
    cos, sin = angles.cos(), angles.sin()
    first, second = heads.double().chunk(2, dim=-1)
    c, s = cos[positions].double().unsqueeze(1), sin[positions].double().unsqueeze(1)
    wanted = torch.cat((first * c - second * s, second * c + first * s), dim=-1)
    before = buffer.clone()
    program = Program()
    program.rope(View(heads), View(positions), View(cos), View(sin))
    with machine(variant=variant):
        program.run(ROWS)
    torch.testing.assert_close(heads[:ROWS].double(), wanted[:ROWS], rtol=1e-6, atol=1e-6)
    assert torch.equal(buffer[ROWS:], before[ROWS:])
    assert torch.equal(buffer[:, 3], before[:, 3])


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_write_kv_puts_each_row_into_its_slot(variant: str, dtype: torch.dtype) -> None:
    qkv = torch.randn(CAPACITY, 6, 24)
    k, v = qkv[:, 2:4], qkv[:, 4:]
    k_pool, v_pool = (torch.randn(5, 3, 2, 24).to(dtype) for _ in range(2))
    wanted = [pool.clone().view(15, 2, 24) for pool in (k_pool, v_pool)]
    slots = torch.randperm(15)[:CAPACITY]
    for pool, new in zip(wanted, (k, v), strict=True):
        pool[slots[:ROWS]] = new[:ROWS].to(dtype)
    program = Program()
    program.write_kv(View(k), View(v), View(slots), View(k_pool), View(v_pool))
    with machine(variant=variant):
        program.run(ROWS)
    assert torch.equal(k_pool.view(15, 2, 24), wanted[0])
    assert torch.equal(v_pool.view(15, 2, 24), wanted[1])


@pytest.mark.parametrize("variant", VARIANTS)
def test_narrowing_is_torchs_for_every_kind_of_number(variant: str) -> None:
    bits = torch.arange(-(2**31), 2**31, 9973, dtype=torch.int64).to(torch.int32)
    values = bits.view(torch.float32)
    values = values[: len(values) // 8 * 8].view(-1, 1, 8)
    pool = torch.zeros(len(values), 1, 1, 8, dtype=torch.bfloat16)
    other = torch.zeros_like(pool)
    program = Program()
    slots = torch.arange(len(values))
    program.write_kv(View(values), View(values), View(slots), View(pool), View(other))
    with machine(variant=variant):
        program.run(len(values))
    wanted = values.view(-1).bfloat16()
    got = pool.view(-1)
    assert torch.equal(got.isnan(), wanted.isnan())
    numbers = ~wanted.isnan()
    assert torch.equal(got[numbers].view(torch.int16), wanted[numbers].view(torch.int16))


def test_operations_run_in_the_order_in_which_they_were_recorded() -> None:
    weight = torch.eye(6) * 2
    x = torch.ones(CAPACITY, 6)
    outs = [torch.zeros(CAPACITY, 6) for _ in range(2)]
    program = Program()
    packed = PackedLinear(View(weight), "float32")
    program.linear(View(x), packed, View(outs[0]))
    program.linear(View(outs[0]), packed, View(outs[1]))
    program.linear(View(outs[0]), packed, View(outs[1]), add=True)
    assert len(program) == 3
    program.run(CAPACITY)
    assert (outs[1] == 8).all()


def test_a_program_keeps_alive_what_it_was_recorded_with() -> None:
    program = Program()
    out = torch.zeros(4, 3)
    program.linear(
        View(torch.ones(4, 5)), PackedLinear(View(torch.ones(3, 5)), "float32"), View(out)
    )
    gc.collect()
    _ = [torch.full((4, 5), torch.nan) for _ in range(100)]
    program.run(4)
    assert (out == 5).all()


def test_a_program_runs_no_more_rows_than_its_smallest_array_has() -> None:
    program = Program()
    program.rms_norm(View(torch.ones(5, 2)), View(torch.ones(2)), 0.0, View(torch.ones(5, 2)))
    program.rms_norm(View(torch.ones(3, 2)), View(torch.ones(2)), 0.0, View(torch.ones(3, 2)))
    assert program.capacity == 3
    program.run(3)
    for rows in (4, -1):
        with pytest.raises(ValueError, match=f"rows must be 0 to 3, got {rows}"):
            program.run(rows)


def test_an_index_out_of_range_is_an_error_and_the_program_goes_on_living() -> None:
    table, ids, out = torch.randn(7, 4), torch.tensor([1, 2, 7]), torch.zeros(3, 4)
    program = Program()
    program.embed(View(table), View(ids), View(out))
    with pytest.raises(IndexError, match=r"embed: ids\[2\] is 7, must be 0 to 6"):
        program.run(3)
    assert not out.any(), "nothing is written before all ids are seen to be good"
    ids[2] = -1
    with pytest.raises(IndexError, match="is -1"):
        program.run(3)
    program.run(2)
    ids[2] = 0
    program.run(3)
    assert torch.equal(out, table[ids])


def test_slots_and_positions_out_of_range_are_errors() -> None:
    heads, ids = torch.randn(2, 1, 4), torch.tensor([0, 6])
    pools = [torch.zeros(2, 3, 1, 4) for _ in range(2)]
    angles = torch.zeros(6, 2)
    write, turn = Program(), Program()
    write.write_kv(View(heads), View(heads), View(ids), View(pools[0]), View(pools[1]))
    turn.rope(View(heads), View(ids), View(angles), View(angles))
    with pytest.raises(IndexError, match=r"write_kv: slots\[1\] is 6, must be 0 to 5"):
        write.run(2)
    with pytest.raises(IndexError, match=r"rope: positions\[1\] is 6, must be 0 to 5"):
        turn.run(2)
    assert not pools[0].any()


def test_two_threads_may_run_two_programs_and_one() -> None:
    x = torch.randn(CAPACITY, 64)
    packed = PackedLinear(View(torch.randn(256, 64)), "float32")
    outs = [torch.zeros(CAPACITY, 256) for _ in range(2)]
    programs = [Program() for _ in outs]
    for program, out in zip(programs, outs, strict=True):
        program.linear(View(x), packed, View(out))
    programs[0].run(CAPACITY)
    wanted = outs[0].clone()
    threads = [
        threading.Thread(target=lambda p=each: [p.run(CAPACITY) for _ in range(200)])
        for each in (*programs, programs[0])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.equal(outs[0], wanted)
    assert torch.equal(outs[1], wanted)


def _view(*shape: int, dtype: torch.dtype = torch.float32) -> View:
    return View(torch.zeros(shape, dtype=dtype))


def _longs(*shape: int) -> View:
    return _view(*shape, dtype=torch.int64)


def _packed(n: int, k: int) -> PackedLinear:
    return PackedLinear(_view(n, k), "float32")


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (
            lambda p: p.embed(_view(7, 4), _longs(3), _view(3, 5)),
            r"embed: out must be float32\[any, 4\], got float32\[3, 5\]",
        ),
        (
            lambda p: p.embed(_view(7, 4), _view(3), _view(3, 4)),
            r"embed: ids must be int64\[3\], got float32\[3\]",
        ),
        (
            lambda p: p.rms_norm(_view(3, 4), _view(5), 1e-5, _view(3, 4)),
            r"rms_norm: weight must be float32 or bfloat16\[4\], got float32\[5\]",
        ),
        (
            lambda p: p.rms_norm(_view(3, 2, 4), _view(4), 1e-5, _view(3, 8)),
            r"rms_norm: out must be float32\[3, 2, 4\], got float32\[3, 8\]",
        ),
        (
            lambda p: p.linear(_view(3, 4), _packed(6, 5), _view(3, 6)),
            r"linear: x must be float32\[any, 5\], got float32\[3, 4\]",
        ),
        (
            lambda p: p.linear(_view(3, 5), _packed(6, 5), _view(2, 6)),
            r"linear: out must be float32\[3, 6\], got float32\[2, 6\]",
        ),
        (
            lambda p: p.linear_swiglu(_view(3, 5), _packed(7, 5), _view(3, 3)),
            r"linear_swiglu: the weights must be gate and up, of equal size, got 7 outputs",
        ),
        (
            lambda p: p.rope(_view(3, 1, 5), _longs(3), _view(9, 2), _view(9, 2)),
            r"rope: heads must be of even size, got float32\[3, 1, 5\]",
        ),
        (
            lambda p: p.rope(_view(3, 1, 6), _longs(3), _view(9, 3), _view(8, 3)),
            r"rope: sin must be float32\[9, 3\], got float32\[8, 3\]",
        ),
        (
            lambda p: p.write_kv(
                _view(3, 1, 4), _view(3, 1, 4), _longs(3), _view(2, 2, 1, 4), _view(2, 3, 1, 4)
            ),
            r"write_kv: v_pool must be float32\[2, 2, 1, 4\], got float32\[2, 3, 1, 4\]",
        ),
    ],
)
def test_arrays_that_do_not_fit_are_refused_when_they_are_recorded(
    record: Callable[[Program], None], message: str
) -> None:
    program = Program()
    with pytest.raises(ValueError, match=message):
        record(program)
    assert len(program) == 0


def test_output_must_not_be_read_while_it_is_written() -> None:
    buffer = torch.zeros(4, 16)
    packed = _packed(8, 8)
    with pytest.raises(ValueError, match="linear: x and out must not share memory"):
        Program().linear(View(buffer[:, :8]), packed, View(buffer[:, 4:12]))
    Program().linear(View(buffer[:, :8]), packed, View(buffer[:, 8:]))


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (torch.zeros(2, 3).T, "innermost dimension must be contiguous"),
        (torch.zeros(1, 1, 1, 1, 1), "1 to 4 dimensions, got 5"),
        (torch.tensor(0.0), "1 to 4 dimensions, got 0"),
        (torch.zeros(3, dtype=torch.int16), "must be float32, float64, bfloat16"),
        (torch.zeros(1, 4).expand(3, 4), "ascending addresses"),
    ],
)
def test_a_view_refuses_what_no_kernel_can_read(array: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        View(array)


def test_a_view_tells_what_it_sees() -> None:
    heads = torch.zeros(4, 6, 8, requires_grad=True)[:, 1:3]
    view = View(heads)
    assert view.shape == (4, 2, 8)
    assert view.strides == (48, 8, 1)
    assert view.dtype == "float32"
    assert view.pointer == heads.data_ptr()
    assert repr(view) == "View(float32[4, 2, 8])"


def test_a_view_takes_any_buffer_and_nothing_else() -> None:
    assert View(bytearray(5)).shape == (5,)
    with pytest.raises(TypeError):
        View("text")
    with pytest.raises(TypeError):
        View(torch.zeros(2, device="meta"))
