"""What is read from config.json, and what is refused by name."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from radixserve.errors import ModelLoadError
from radixserve.models.config import ModelSpec, read_json
from tests.kit.tiny_model import tiny_config

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel"),
        ({"architectures": ["Qwen3MoeForCausalLM"]}, "Qwen3MoeForCausalLM"),
        ({"architectures": None}, "architectures"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"quantization_config": {"quant_method": "awq"}}, "awq"),
        ({"num_local_experts": 8}, "num_local_experts"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"head_dim": 15}, "head_dim"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"vocab_size": True}, "vocab_size"),
        ({"layer_types": ["chunked_attention"] * 2}, "chunked_attention"),
        ({"rope_scaling": {"rope_type": "foo", "factor": 2.0}}, "'foo'"),
        ({"rope_scaling": {"type": "foo", "factor": 2.0}}, "'foo'"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "'dynamic'"),
        ({"rope_scaling": {"type": "longrope", "factor": 2.0}}, "'longrope'"),
        ({"rope_scaling": {"rope_type": "linear"}}, "'factor'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "'low_freq_factor'"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": "4"}}, "'factor'"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "rope_parameters"),
    ],
)
def test_what_the_decoder_cannot_do_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelLoadError, match=named):
        ModelSpec.from_hf(tiny_config(**changes))


@pytest.mark.parametrize(
    "key", ["hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings"]
)
def test_a_missing_size_is_named(key: str) -> None:
    config = tiny_config()
    del config[key]

    with pytest.raises(ModelLoadError, match=key):
        ModelSpec.from_hf(config)


def test_what_a_family_leaves_unsaid_is_filled_in() -> None:
    config = tiny_config("qwen3")
    for key in ("head_dim", "num_key_value_heads", "rope_theta", "dtype"):
        del config[key]

    spec = ModelSpec.from_hf(config)

    assert (spec.head_dim, spec.num_kv_heads, spec.rotary.theta) == (128, 4, 10000.0)
    assert spec.qk_norm
    assert spec.dtype == "float32"


def test_only_qwen2_has_qkv_biases_unasked() -> None:
    biased = {f: ModelSpec.from_hf(tiny_config(f)).qkv_bias for f in ("llama", "qwen2", "qwen3")}

    assert biased == {"llama": False, "qwen2": True, "qwen3": False}


@pytest.mark.parametrize(
    ("family", "changes", "max_position"),
    [
        ("llama", {"sliding_window": 64}, 64),
        ("mistral", {"sliding_window": None}, 2048),
        ("mistral", {"sliding_window": 4096}, 2048),
        ("mistral", {"sliding_window": 64}, 64),
        ("qwen2", {"sliding_window": 64}, 2048),
        ("qwen2", {"sliding_window": 64, "use_sliding_window": True}, 64),
        (
            "qwen2",
            {
                "sliding_window": 64,
                "use_sliding_window": True,
                "layer_types": ["full_attention"] * 2,
            },
            2048,
        ),
    ],
)
def test_the_context_ends_where_a_sliding_window_would_begin_to_hide_tokens(
    family: str, changes: dict[str, Any], max_position: int
) -> None:
    assert ModelSpec.from_hf(tiny_config(family, **changes)).max_position == max_position


def test_mistral_without_the_key_has_the_window_that_its_config_class_gives_it() -> None:
    config = tiny_config("mistral", max_position_embeddings=32768)
    del config["sliding_window"]

    assert ModelSpec.from_hf(config).max_position == 4096


@pytest.mark.parametrize("text", ["{", "[1]", "\ud800"])
def test_a_broken_config_file_is_named(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))

    with pytest.raises(ModelLoadError, match=r"config\.json"):
        read_json(path)


def test_reading_a_config_needs_no_torch() -> None:
    code = "import radixserve.models.config, sys; sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
