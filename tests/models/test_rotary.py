"""The rotary tables against transformers' own, and both layouts of the settings."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from radixserve.models.config import ModelSpec
from radixserve.models.rotary import RotaryTable, rotate_
from tests.kit.tiny_model import tiny_config

POSITIONS = [0, 1, 8191, 16000]
MAX_POSITION = 16384
HEAD_DIM = 16
HALF = HEAD_DIM // 2
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 4.0},
    "llama3": LLAMA3,
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 4096},
    "yarn, all settings": {
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "mscale": 0.9,
        "mscale_all_dim": 0.7,
        "truncate": False,
    },
    "yarn, own attention factor": {
        "factor": 2.0,
        "original_max_position_embeddings": 8192,
        "attention_factor": 0.8,
    },
}


def our_tables(config: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cos and sin at `POSITIONS`, each [4, HALF]."""
    spec = ModelSpec.from_hf(config)
    table = RotaryTable(spec.rotary, head_dim=spec.head_dim, max_position=spec.max_position)
    cos, signed_sin = table(torch.tensor(POSITIONS))
    assert torch.equal(cos[..., :HALF], cos[..., HALF:])
    assert torch.equal(signed_sin[..., :HALF], -signed_sin[..., HALF:])
    return cos[:, 0, :HALF], signed_sin[:, 0, HALF:]


def layout(kind: str, key: str) -> dict[str, Any]:
    config = tiny_config(max_position_embeddings=MAX_POSITION)
    theta = config.pop("rope_theta")
    name = kind.partition(",")[0]
    if key == "rope_parameters":
        return config | {key: SETTINGS[kind] | {"rope_type": name, "rope_theta": theta}}
    return config | {"rope_theta": theta, "rope_scaling": SETTINGS[kind] | {key: name}}


@pytest.mark.parametrize("key", ["rope_type", "type", "rope_parameters"])
@pytest.mark.parametrize("kind", SETTINGS)
def test_tables_equal_transformers_in_every_layout(kind: str, key: str) -> None:
    reference = LlamaRotaryEmbedding(LlamaConfig(**layout(kind, "rope_parameters")))
    cos, sin = reference(torch.zeros(1), torch.tensor([POSITIONS]))

    our_cos, our_sin = our_tables(layout(kind, key))

    torch.testing.assert_close(our_cos, cos[0, :, :HALF], atol=1e-6, rtol=0)
    torch.testing.assert_close(our_sin, sin[0, :, :HALF], atol=1e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotation_turns_each_pair_by_its_angle(dtype: torch.dtype) -> None:
    spec = ModelSpec.from_hf(tiny_config())
    table = RotaryTable(spec.rotary, head_dim=HEAD_DIM, max_position=64)
    buffer = torch.randn(3, 9, HEAD_DIM, generator=torch.Generator().manual_seed(0)).to(dtype)
    heads, untouched = buffer[:, :5], buffer[:, 5:].clone()
    pairs = torch.complex(heads[..., :8].double(), heads[..., 8:].double())
    positions = torch.tensor([0, 7, 63])
    angles = positions[:, None].double() * 10000.0 ** (-torch.arange(8).double() / 8)
    expected = pairs * torch.polar(torch.ones_like(angles), angles)[:, None]

    rotate_(heads, *table(positions))

    got = torch.complex(heads[..., :8].double(), heads[..., 8:].double())
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(got, expected, atol=tolerance, rtol=tolerance)
    assert torch.equal(buffer[:, 5:], untouched)
