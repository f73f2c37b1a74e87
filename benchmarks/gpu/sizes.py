"""How large everything is: on a GPU, and in a dry run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_LLAMA: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "max_position_embeddings": 16384,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
}

LLAMA_3_8B: Mapping[str, Any] = {
    **_LLAMA,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
"""The dimensions of Llama-3-8B; a context of 16k, so that 8k prompts can be answered."""

TINY: Mapping[str, Any] = {
    **_LLAMA,
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 512,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Of the batches and the models."""

    big_model: Mapping[str, Any]
    small_model: Mapping[str, Any]
    """Instead of the real one, where that is missing."""
    page_sizes: tuple[int, ...]
    group_sizes: tuple[int, ...]
    decodes: tuple[tuple[int, int], ...]
    """(requests, context), the most telling first."""
    prefill_len: int
    num_sharers: int
    shared_len: int
    own_len: int
    output_len: int
    """Tokens of each greedy answer."""
    matmul: tuple[int, int, int]
    copy_bytes: int
    repeats: int
    scheduler_samples: int
    few_shot_requests: int
    few_shot_prefix_len: int
    few_shot_max_tokens: int


FULL = Sizes(
    big_model=LLAMA_3_8B,
    small_model=TINY,
    page_sizes=(1, 16, 64),
    group_sizes=(1, 2, 3, 4, 5, 6, 7, 8),
    decodes=(
        *((n, 1024) for n in (64, 1, 8, 256)),
        *((n, 8192) for n in (64, 1, 8, 256)),
    ),
    prefill_len=8192,
    num_sharers=64,
    shared_len=4096,
    own_len=128,
    output_len=64,
    matmul=(8192, 4096, 14336),
    copy_bytes=2**30,
    repeats=20,
    scheduler_samples=500,
    few_shot_requests=64,
    few_shot_prefix_len=1000,
    few_shot_max_tokens=32,
)

SMALL = Sizes(
    big_model=TINY,
    small_model=TINY,
    page_sizes=(1, 16, 64),
    group_sizes=(1, 3),
    decodes=((4, 64), (1, 64)),
    prefill_len=128,
    num_sharers=8,
    shared_len=512,
    own_len=16,
    output_len=4,
    matmul=(128, 128, 128),
    copy_bytes=2**20,
    repeats=2,
    scheduler_samples=4,
    few_shot_requests=2,
    few_shot_prefix_len=64,
    few_shot_max_tokens=2,
)
