"""Which precision "auto" chooses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from radixserve.errors import ModelLoadError
from radixserve.models.dtype import choose_dtype, has_native_bfloat16

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("line", "native"),
    [
        ("flags\t\t: fpu avx512f avx512_bf16 avx512_vnni", True),
        ("flags\t\t: fpu amx_bf16 amx_tile", True),
        ("Features\t: fp asimd bf16 i8mm", True),
        ("flags\t\t: fpu avx2 avx512f", False),
        ("model name\t: an avx512_bf16 processor", False),
        ("", False),
    ],
)
def test_the_processor_says_whether_it_multiplies_bfloat16(
    line: str, *, native: bool, tmp_path: Path
) -> None:
    cpu_info = tmp_path / "cpuinfo"
    cpu_info.write_text(f"processor\t: 0\n{line}\n\nprocessor\t: 1\n{line}\n", encoding="utf-8")

    assert has_native_bfloat16(cpu_info) is native


def test_an_unknown_processor_computes_in_float32(tmp_path: Path) -> None:
    assert not has_native_bfloat16(tmp_path / "missing")


def test_a_named_dtype_is_taken_as_it_is() -> None:
    assert choose_dtype("float32", has_kernels=True) == torch.float32
    assert choose_dtype("bfloat16", has_kernels=False) == torch.bfloat16


def test_auto_is_what_the_kernels_or_the_processor_do_well() -> None:
    assert choose_dtype("auto", has_kernels=True) == torch.bfloat16
    plain = torch.bfloat16 if has_native_bfloat16() else torch.float32
    assert choose_dtype("auto", has_kernels=False) == plain


def test_an_unknown_dtype_is_named() -> None:
    with pytest.raises(ModelLoadError, match="float8"):
        choose_dtype("float8", has_kernels=False)
