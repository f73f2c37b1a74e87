"""Scales of 8-bit K and V: found beside the weights, one pair a layer, or refused."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load_file, save_file

from radixserve.attention.kv_writer import KVScale
from radixserve.errors import ModelLoadError
from radixserve.models.loader import load_model
from tests.kit.tiny_model import write_tiny_model

if TYPE_CHECKING:
    from pathlib import Path

LAYER = "model.layers.{}.self_attn."


def write_with(folder: Path, scales: dict[str, torch.Tensor]) -> Path:
    write_tiny_model(folder)
    path = folder / "model.safetensors"
    save_file(load_file(path) | scales, path)
    return folder


@pytest.mark.parametrize("names", [("k_scale", "v_scale"), ("k_proj.k_scale", "v_proj.v_scale")])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_each_layers_scales_are_found(
    names: tuple[str, str], shape: tuple[int, ...], tmp_path: Path
) -> None:
    scales = {
        LAYER.format(layer) + name: torch.full(shape, value)
        for layer, pair in enumerate([(0.5, 0.25), (2.0, 1.5)])
        for name, value in zip(names, pair, strict=True)
    }
    loaded = load_model(write_with(tmp_path, scales), dtype=torch.float32)

    assert loaded.kv_scales == (KVScale(0.5, 0.25), KVScale(2.0, 1.5))


def test_a_folder_without_scales_has_none(tmp_path: Path) -> None:
    assert load_model(write_tiny_model(tmp_path), dtype=torch.float32).kv_scales is None


@pytest.mark.parametrize(
    ("scales", "why"),
    [
        ({"0.k_scale": [1.0], "0.v_scale": [1.0]}, "scales of K for the layers [0], and the model"),
        ({"0.k_scale": [1.0], "1.k_scale": [1.0]}, "scales of V for the layers []"),
        ({f"{i}.{n}_scale": [1.0] for i in range(3) for n in "kv"}, "the layers [0, 1, 2]"),
        ({"0.k_scale": [1.0, 2.0]}, "k_scale has shape [2]; KV scales are one number a layer"),
        ({"0.v_scale": [0.0]}, "v_scale is 0.0, which nothing can be scaled by"),
        ({"0.v_scale": [float("nan")]}, "v_scale is nan"),
        ({"0.q_scale": [1.0]}, "tensors that the model has no place for"),
    ],
)
def test_scales_that_mean_nothing_are_refused(
    scales: dict[str, list[float]], why: str, tmp_path: Path
) -> None:
    tensors = {
        LAYER.format(name[0]) + name[2:]: torch.tensor(value) for name, value in scales.items()
    }
    with pytest.raises(ModelLoadError, match=re.escape(why)):
        load_model(write_with(tmp_path, tensors), dtype=torch.float32)
