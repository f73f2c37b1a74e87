"""`ModelSpec`: what a config.json says about a Llama-family model, checked and in our words.

Everything that the decoder cannot represent is refused here by name. A setting that is ignored in
silence gives a model that answers, only worse.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from radixserve.errors import ModelLoadError
from radixserve.models.rotary_config import RotarySpec, parse_rotary

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    """What an architecture fixes without saying so in its config."""

    qkv_bias: bool = False
    """Query, key and value always have a bias, the output never."""
    qk_norm: bool = False
    default_head_dim: int | None = None
    default_sliding_window: int | None = None
    reads_attention_bias: bool = False
    reads_mlp_bias: bool = False
    has_window_switch: bool = False
    """`sliding_window` counts only where `use_sliding_window` is true."""


_FAMILIES = {
    "LlamaForCausalLM": _Family(reads_attention_bias=True, reads_mlp_bias=True),
    "MistralForCausalLM": _Family(default_sliding_window=4096),
    "Qwen2ForCausalLM": _Family(qkv_bias=True, has_window_switch=True),
    "Qwen3ForCausalLM": _Family(
        qk_norm=True, default_head_dim=128, reads_attention_bias=True, has_window_switch=True
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """The shape of a decoder and the variants it uses."""

    architecture: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_qo_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    """Rows of the embedding; may exceed the tokenizer's vocabulary."""
    max_position: int
    """Most tokens in a sequence."""
    rms_norm_eps: float
    rotary: RotarySpec
    tie_word_embeddings: bool
    """The output head is the embedding."""
    qkv_bias: bool
    output_bias: bool
    """The attention's output projection has a bias."""
    mlp_bias: bool
    qk_norm: bool
    """Each head's query and key are normalised before they are rotated."""
    dtype: str
    """The checkpoint's own precision, such as "bfloat16"."""

    @staticmethod
    def from_hf(config: Mapping[str, Any]) -> ModelSpec:
        """Return the spec of the model that `config` (a parsed config.json) describes.

        Raises:
            ModelLoadError: a key is missing, or asks for something the decoder does not do.
        """
        architecture = _architecture(config)
        family = _FAMILIES[architecture]
        _refuse_unsupported(config)
        heads = _size(config, "num_attention_heads")
        hidden = _size(config, "hidden_size")
        kv_heads = _size(config, "num_key_value_heads", heads)
        if heads % kv_heads:
            raise ModelLoadError(
                f"config.json: num_attention_heads ({heads}) must be a multiple of "
                f"num_key_value_heads ({kv_heads})"
            )
        attention_bias = family.reads_attention_bias and bool(config.get("attention_bias"))
        return ModelSpec(
            architecture=architecture,
            num_layers=_size(config, "num_hidden_layers"),
            hidden_size=hidden,
            intermediate_size=_size(config, "intermediate_size"),
            num_qo_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=_head_dim(config, family, hidden // heads),
            vocab_size=_size(config, "vocab_size"),
            max_position=_max_position(config, family),
            rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            rotary=parse_rotary(config),
            tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
            qkv_bias=family.qkv_bias or attention_bias,
            output_bias=attention_bias,
            mlp_bias=family.reads_mlp_bias and bool(config.get("mlp_bias")),
            qk_norm=family.qk_norm,
            dtype=str(config.get("dtype") or config.get("torch_dtype") or "float32"),
        )


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in `path`.

    Raises:
        ModelLoadError: the file is missing, is not JSON, or is not an object.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelLoadError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ModelLoadError(f"{path} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise ModelLoadError(f"{path} must hold a JSON object")
    return document


def _architecture(config: Mapping[str, Any]) -> str:
    names = config.get("architectures") or []
    known = ", ".join(_FAMILIES)
    if len(names) != 1:
        raise ModelLoadError(
            f"config.json: 'architectures' must name one architecture, not {names}; known: {known}"
        )
    if names[0] not in _FAMILIES:
        raise ModelLoadError(
            f"config.json: architecture '{names[0]}' is not supported; known: {known}"
        )
    return str(names[0])


def _refuse_unsupported(config: Mapping[str, Any]) -> None:
    activation = config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise ModelLoadError(f"config.json: hidden_act '{activation}' is not supported, only silu")
    quantization = config.get("quantization_config")
    if quantization is not None:
        method = quantization.get("quant_method", "unknown")
        raise ModelLoadError(
            f"config.json: quantization_config (quant_method '{method}') is not supported; "
            "use the unquantised weights"
        )
    for key in ("num_experts", "num_local_experts"):
        if config.get(key):
            raise ModelLoadError(f"config.json: {key}: mixture-of-experts is not supported")


def _size(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = config.get(key)
    value = default if value is None else value
    if value is None:
        raise ModelLoadError(f"config.json: '{key}' is missing")
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ModelLoadError(f"config.json: '{key}' must be a whole number above 0, not {value!r}")
    return value


def _head_dim(config: Mapping[str, Any], family: _Family, derived: int) -> int:
    head_dim = _size(config, "head_dim", family.default_head_dim or derived)
    if head_dim % 2:
        raise ModelLoadError(f"config.json: head_dim ({head_dim}) must be even")
    return head_dim


def _max_position(config: Mapping[str, Any], family: _Family) -> int:
    """Return the longest sequence for which every layer sees every earlier token."""
    limit = _size(config, "max_position_embeddings")
    window = _sliding_window(config, family)
    if window is None or window >= limit:
        return limit
    _log.warning(
        "the model attends over a sliding window of %d tokens, which is not supported: "
        "its context is limited from %d tokens to the window",
        window,
        limit,
    )
    return window


def _sliding_window(config: Mapping[str, Any], family: _Family) -> int | None:
    layer_types = config.get("layer_types") or []
    unknown = set(layer_types) - {"full_attention", "sliding_attention"}
    if unknown:
        raise ModelLoadError(f"config.json: layer_types {sorted(unknown)} are not supported")
    if family.has_window_switch and not config.get("use_sliding_window"):
        return None
    if layer_types and "sliding_attention" not in layer_types:
        return None
    window = config.get("sliding_window", family.default_sliding_window)
    return None if window is None else _size(config, "sliding_window", window)
