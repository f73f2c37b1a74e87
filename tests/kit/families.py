"""A small model of each family, as transformers configures it."""

from __future__ import annotations

from typing import Any

from transformers import LlamaConfig, MistralConfig, PreTrainedConfig, Qwen2Config, Qwen3Config

SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 160,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
THETA = {"rope_theta": 10000.0}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}

FAMILIES: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**SHAPE, rope_parameters={"rope_type": "default", **THETA}),
    "llama tied": LlamaConfig(**SHAPE, tie_word_embeddings=True),
    "llama with biases": LlamaConfig(**SHAPE, attention_bias=True, mlp_bias=True),
    "llama, linear rope": LlamaConfig(
        **SHAPE, rope_parameters={"rope_type": "linear", "factor": 4.0, **THETA}
    ),
    "llama 3 rope": LlamaConfig(**SHAPE, head_dim=32, rope_parameters={**LLAMA3, **THETA}),
    "llama, yarn": LlamaConfig(**SHAPE, rope_parameters={**YARN, **THETA}),
    "llama, one kv head": LlamaConfig(**SHAPE | {"num_key_value_heads": 1}),
    "mistral": MistralConfig(**SHAPE, sliding_window=None),
    "qwen2": Qwen2Config(**SHAPE),
    "qwen2 tied": Qwen2Config(**SHAPE, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**SHAPE, head_dim=32),
    "qwen3 tied with biases": Qwen3Config(
        **SHAPE, head_dim=16, tie_word_embeddings=True, attention_bias=True
    ),
}
