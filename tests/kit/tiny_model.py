"""Small models with random weights, as folders that any loader of checkpoints can read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file

from radixserve.models.config import ModelSpec
from radixserve.models.decoder import CausalLM

if TYPE_CHECKING:
    from pathlib import Path

_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


def tiny_config(family: str = "llama", **changes: Any) -> dict[str, Any]:
    """Return the config.json of a model with 2 layers, hidden size 64, 4 heads and 2 KV heads."""
    return {
        "architectures": [_ARCHITECTURES[family]],
        "model_type": family,
        "hidden_act": "silu",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 512,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "sliding_window": None,
        "dtype": "float32",
    } | changes


def write_tiny_model(
    folder: Path, *, family: str = "llama", vocab_size: int = 512, seed: int = 0, **changes: Any
) -> Path:
    """Write config.json and model.safetensors of a small random model and return `folder`.

    Args:
        folder: Created if need be.
        family: llama, mistral, qwen2 or qwen3.
        vocab_size: Rows of the embedding.
        seed: Equal seeds give equal weights.
        changes: Keys of config.json that differ from `tiny_config`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = tiny_config(family, vocab_size=vocab_size, **changes)
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    save_file(random_weights(config, seed=seed), folder / "model.safetensors", {"format": "pt"})
    return folder


def random_weights(config: dict[str, Any], *, seed: int = 0) -> dict[str, torch.Tensor]:
    """Return random float32 weights for `config`, under a checkpoint's names.

    They are scaled so that the logits differ clearly from token to token.
    """
    generator = torch.Generator().manual_seed(seed)
    model = CausalLM(ModelSpec.from_hf(config), dtype=torch.float32)
    weights: dict[str, torch.Tensor] = {}
    for name, target in model.checkpoint_targets().items():
        noise = torch.randn(target.shape, generator=generator)
        is_norm = name.endswith("norm.weight") or "layernorm" in name
        weights[name] = 1 + 0.1 * noise if is_norm else noise / target.shape[-1] ** 0.5
    weights["model.embed_tokens.weight"] = torch.randn(
        weights["model.embed_tokens.weight"].shape, generator=generator
    )
    return weights
