"""Instruction sets, threads, and what happens where the kernels cannot be used."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from radixserve import kernels
from radixserve.kernels import PackedLinear, Program, View
from tests.kernels.machines import machine

REPO = Path(__file__).parents[2]

needs_kernels = pytest.mark.skipif(not kernels.is_available(), reason=kernels.why_not())


def python(code: str, **environment: str) -> str:
    """Run `code` in a Python of its own and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(REPO), **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@needs_kernels
def test_the_best_variant_is_used_unless_another_is_chosen() -> None:
    names = kernels.variants()
    assert names[0] == "scalar"
    with machine(variant="scalar"):
        assert kernels.variant() == "scalar"
    assert kernels.variant() == os.environ.get("RADIXSERVE_KERNELS", names[-1])


@needs_kernels
def test_an_unknown_variant_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="no kernels for 'sse9'; this machine can run: scalar"):
        kernels.set_variant("sse9")


@needs_kernels
def test_the_environment_chooses_the_variant() -> None:
    code = "from radixserve import kernels; print(kernels.variant())"
    assert python(code, RADIXSERVE_KERNELS="scalar") == "scalar"


def test_kernels_that_cannot_be_used_say_why_and_import_all_the_same() -> None:
    code = """
from radixserve.errors import BackendUnavailableError
from radixserve.kernels import Program, is_available, why_not
try:
    Program()
except BackendUnavailableError as error:
    print(is_available(), "|", error, "|", why_not() == str(error))
"""
    available, message, same = python(code, RADIXSERVE_KERNELS="sse9").split(" | ")
    assert (available, same) == ("False", "True")
    assert "sse9" in message or "not built" in message


def test_importing_the_kernels_loads_neither_torch_nor_numpy() -> None:
    code = "import sys, radixserve.kernels; print({'torch', 'numpy'} & set(sys.modules))"
    assert python(code) == "set()"


@needs_kernels
@pytest.mark.parametrize("n", [0, -1, 1025])
def test_a_number_of_threads_that_makes_no_sense_is_refused(n: int) -> None:
    with pytest.raises(ValueError, match="1 to 1024"):
        kernels.set_num_threads(n)


@needs_kernels
def test_the_number_of_threads_is_what_was_set() -> None:
    for threads in (1, 3, 2):
        with machine(threads=threads):
            assert kernels.num_threads() == threads


@needs_kernels
def test_limits_of_the_machine_are_measured() -> None:
    assert kernels.measure_read_bandwidth(8 << 20) > 1e8
    assert kernels.measure_peak_flops() > 1e8


@needs_kernels
def test_a_forked_child_computes_with_threads_of_its_own() -> None:
    code = """
import os, torch
from radixserve import kernels
from radixserve.kernels import PackedLinear, Program, View
kernels.set_num_threads(3)
x, out = torch.ones(4, 64), torch.zeros(4, 512)
program = Program()
program.linear(View(x), PackedLinear(View(torch.ones(512, 64)), "float32"), View(out))
program.run(4)
child = os.fork()
out.zero_()
program.run(4)
if child == 0:
    os._exit(0 if (out == 64).all() and kernels.num_threads() == 3 else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), bool((out == 64).all()))
"""
    assert python(code) == "0 True"


@needs_kernels
def test_more_threads_than_cores_finish_and_agree() -> None:
    x, weight = torch.randn(7, 64), torch.randn(640, 64)
    out = torch.zeros(7, 640)
    program = Program()
    program.linear(View(x), PackedLinear(View(weight), "float32"), View(out))
    program.run(7)
    wanted = out.clone()
    with machine(threads=9):
        for _ in range(50):
            out.zero_()
            program.run(7)
            assert torch.equal(out, wanted)
