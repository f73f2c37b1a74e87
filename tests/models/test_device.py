from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
import torch

from radixserve.errors import BackendUnavailableError, ConfigError, ModelLoadError
from radixserve.models import device as module
from radixserve.models.device import choose_device
from radixserve.models.dtype import choose_gpu_dtype, choose_kv_dtype
from radixserve.models.loader import load_model
from tests.kit.tiny_model import write_tiny_model

if TYPE_CHECKING:
    from pathlib import Path

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(module, "find_spec", lambda _: object())


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("setting", ["auto", "cpu"])
@pytest.mark.parametrize("backend", ["auto", "cpu", "reference"])
def test_without_a_gpu_everything_is_on_the_host(setting: str, backend: str) -> None:
    assert choose_device(setting, backend=backend) == CPU


@pytest.mark.usefixtures("a_gpu")
@pytest.mark.parametrize(
    ("setting", "backend", "device"),
    [
        ("auto", "auto", CUDA),
        ("cuda", "auto", CUDA),
        ("cpu", "auto", CPU),
        ("auto", "cpu", CPU),
        ("auto", "reference", CPU),
    ],
)
def test_a_gpu_is_used_unless_the_settings_are_at_home_elsewhere(
    setting: str, backend: str, device: torch.device
) -> None:
    assert choose_device(setting, backend=backend) == device


@pytest.mark.usefixtures("a_gpu")
def test_a_gpu_without_flashinfer_is_not_used_and_the_log_says_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "find_spec", lambda _: None)

    with caplog.at_level(logging.WARNING):
        assert choose_device("auto", backend="auto") == CPU

    assert "radixserve[cuda]" in caplog.text


@pytest.mark.usefixtures("no_gpu")
def test_a_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"device cuda: torch .* finds no NVIDIA GPU"):
        choose_device("cuda", backend="auto")


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("setting", ["auto", "cpu"])
def test_flashinfer_without_a_gpu_is_refused_before_any_weight_is_read(setting: str) -> None:
    with pytest.raises(BackendUnavailableError, match="no NVIDIA GPU was found"):
        choose_device(setting, backend="flashinfer")


@pytest.mark.usefixtures("a_gpu")
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_backend_of_the_host_does_not_go_with_a_gpu(backend: str) -> None:
    with pytest.raises(ConfigError, match=f"{backend!r} runs on the host only"):
        choose_device("cuda", backend=backend)


@pytest.mark.usefixtures("a_gpu")
def test_flashinfer_does_not_go_with_the_host() -> None:
    with pytest.raises(BackendUnavailableError, match="KV is on cpu"):
        choose_device("cpu", backend="flashinfer")


def test_a_gpu_computes_in_16_bits() -> None:
    assert choose_gpu_dtype("auto") == choose_gpu_dtype("bfloat16") == torch.bfloat16
    assert choose_gpu_dtype("float16") == torch.float16
    with pytest.raises(ModelLoadError, match="bfloat16 or float16; got 'float32'"):
        choose_gpu_dtype("float32")


def test_kv_is_the_models_unless_a_gpu_is_told_to_hold_less() -> None:
    assert choose_kv_dtype("auto", torch.float32, CPU) == torch.float32
    assert choose_kv_dtype("fp8_e4m3", torch.bfloat16, CUDA) == torch.float8_e4m3fn
    assert choose_kv_dtype("fp8_e5m2", torch.bfloat16, CUDA) == torch.float8_e5m2
    with pytest.raises(ConfigError, match="fp8_e4m3 needs a GPU"):
        choose_kv_dtype("fp8_e4m3", torch.bfloat16, CPU)


def test_int8_kv_is_for_a_cpu() -> None:
    assert choose_kv_dtype("int8", torch.bfloat16, CPU) == torch.int8
    with pytest.raises(ConfigError, match="int8 needs a CPU"):
        choose_kv_dtype("int8", torch.bfloat16, CUDA)


def test_weights_and_tables_go_to_the_device(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "tiny")
    meta = torch.device("meta")

    loaded = load_model(folder, dtype=torch.bfloat16, device=meta)

    places = [*loaded.model.parameters(), *loaded.model.buffers()]
    assert {tensor.device for tensor in places} == {meta}
    assert torch.get_default_device() == CPU
