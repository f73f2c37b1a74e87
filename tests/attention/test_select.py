from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
import torch

from radixserve import kernels
from radixserve.attention import select
from radixserve.attention.cpu import CpuAttention
from radixserve.attention.layer_kv import LayerKV
from radixserve.attention.reference import ReferenceAttention
from radixserve.attention.select import has_kernels, select_backend
from radixserve.errors import BackendUnavailableError
from radixserve.kernels import native

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve.attention.backend import AttentionBackend

LAYERS = [LayerKV(k=torch.zeros(2, 4, 2, 8), v=torch.zeros(2, 4, 2, 8))]


def test_the_reference_backend_runs_everywhere() -> None:
    assert isinstance(select_backend("reference", LAYERS, num_qo_heads=4), ReferenceAttention)


@pytest.mark.skipif(not kernels.is_available(), reason=kernels.why_not())
@pytest.mark.parametrize("name", ["cpu", "auto"])
def test_the_native_kernels_serve_where_they_are_built(name: str) -> None:
    assert isinstance(select_backend(name, LAYERS, num_qo_heads=4), CpuAttention)


def test_auto_falls_back_where_the_kernels_are_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_reason", "no compiler was found")

    assert isinstance(select_backend("auto", LAYERS, num_qo_heads=4), ReferenceAttention)
    with pytest.raises(BackendUnavailableError, match="no compiler was found"):
        select_backend("cpu", LAYERS, num_qo_heads=4)


@pytest.mark.skipif(not kernels.is_available(), reason=kernels.why_not())
@pytest.mark.parametrize(
    ("head_dim", "dtype", "message"),
    [(12, torch.float32, "multiple of 8; got 12"), (8, torch.float16, "got torch.float16 on cpu")],
)
def test_a_pool_that_the_kernels_cannot_read_is_left_to_the_reference(
    head_dim: int, dtype: torch.dtype, message: str
) -> None:
    pool = torch.zeros(2, 4, 2, head_dim, dtype=dtype)
    layers = [LayerKV(k=pool, v=pool)]

    assert isinstance(select_backend("auto", layers, num_qo_heads=4), ReferenceAttention)
    with pytest.raises(BackendUnavailableError, match=message):
        select_backend("cpu", layers, num_qo_heads=4)


def test_flashinfer_without_a_gpu_is_refused_with_what_to_use_instead() -> None:
    message = "flashinfer runs on a CUDA device only, and .*; use --attention-backend cpu"
    with pytest.raises(BackendUnavailableError, match=message):
        select_backend("flashinfer", LAYERS, num_qo_heads=4)


@pytest.mark.parametrize(
    ("name", "is_native"),
    [("auto", True), ("cpu", True), ("flashinfer", False), ("reference", False)],
)
def test_the_native_kernels_are_those_of_a_cpu(name: str, is_native: bool) -> None:
    assert has_kernels(name) == (is_native and kernels.is_available())


def test_auto_over_a_pool_in_host_memory_does_not_try_a_gpu(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "flashinfer", None)  # an import of it would fail

    select_backend("auto", LAYERS, num_qo_heads=4)

    assert "flashinfer" not in caplog.text


def test_a_name_that_nobody_has_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BackendUnavailableError, match=r"'warp'; known: .*reference"):
        select_backend("warp", LAYERS, num_qo_heads=4)


def test_auto_says_of_each_backend_what_is_missing() -> None:
    with pytest.raises(BackendUnavailableError, match=r"reference: .* 3 query heads"):
        select_backend("auto", LAYERS, num_qo_heads=3)


def test_auto_passes_over_a_backend_that_cannot_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def needs_a_gpu(
        layers: Sequence[LayerKV], *, num_qo_heads: int, scale: float | None = None
    ) -> AttentionBackend:
        raise BackendUnavailableError("no GPU was found")

    monkeypatch.setattr(select, "BACKENDS", {**select.BACKENDS, "gpu": needs_a_gpu})
    monkeypatch.setattr(select, "AUTO_ORDER", ("gpu", "reference"))

    assert isinstance(select_backend("auto", LAYERS, num_qo_heads=4), ReferenceAttention)
