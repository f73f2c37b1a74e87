"""Our decoder against transformers, family by family, in float32."""

from __future__ import annotations

import itertools
import logging
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from radixserve.models.loader import LoadedModel, load_model
from tests.kit.dense_attention import DenseAttention
from tests.kit.families import FAMILIES
from tests.kit.tiny_model import write_tiny_model

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PreTrainedConfig


def reference_model(config: PreTrainedConfig) -> Any:
    torch.manual_seed(7)
    auto: Any = AutoModelForCausalLM
    model = auto.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or "bias" in name:  # transformers starts these at 1 and 0
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def our_logits(loaded: LoadedModel, ids: torch.Tensor, *chunk_lens: int) -> torch.Tensor:
    attention = DenseAttention()
    ends = list(itertools.accumulate(chunk_lens)) or [ids.shape[0]]
    with torch.inference_mode():
        hidden = [
            loaded.model(ids[start:end], torch.arange(start, end), attention)
            for start, end in itertools.pairwise([0, *ends])
        ]
        return loaded.model.compute_logits(torch.cat(hidden))


def reference_logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = model(ids[None]).logits[0]
    return logits


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_transformers(family: str, tmp_path: Path) -> None:
    reference = reference_model(FAMILIES[family])
    reference.save_pretrained(tmp_path)
    ids = torch.randint(0, 160, (60,), generator=torch.Generator().manual_seed(3))

    ours = our_logits(load_model(tmp_path, dtype=torch.float32), ids)

    expected = reference_logits(reference, ids)
    assert expected.std() > 0.5  # logits that hardly differ would prove nothing
    torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-4)


def test_logits_equal_transformers_from_a_sharded_checkpoint(tmp_path: Path) -> None:
    reference = reference_model(FAMILIES["qwen2"])
    reference.save_pretrained(tmp_path, max_shard_size="60KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    ids = torch.arange(20)

    ours = our_logits(load_model(tmp_path, dtype=torch.float32), ids)

    torch.testing.assert_close(ours, reference_logits(reference, ids), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_transformers_reads_the_tiny_model_as_we_do(family: str, tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, family=family)
    auto: Any = AutoModelForCausalLM
    reference, info = auto.from_pretrained(folder, output_loading_info=True)
    ids = torch.arange(40)

    ours = our_logits(load_model(folder, dtype=torch.float32), ids)

    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    torch.testing.assert_close(ours, reference_logits(reference, ids), atol=1e-4, rtol=1e-4)


def test_a_prompt_in_chunks_gives_the_logits_of_the_whole(tmp_path: Path) -> None:
    loaded = load_model(write_tiny_model(tmp_path, family="qwen3"), dtype=torch.float32)
    ids = torch.arange(30)

    whole = our_logits(loaded, ids)
    chunked = our_logits(loaded, ids, 11, 1, 18)

    torch.testing.assert_close(chunked, whole, atol=1e-5, rtol=1e-5)


def test_bfloat16_stays_near_float32(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path)
    ids = torch.arange(30)

    exact = our_logits(load_model(folder, dtype=torch.float32), ids)
    rounded = our_logits(load_model(folder, dtype=torch.bfloat16), ids)

    assert rounded.dtype == torch.float32
    error = (rounded - exact).pow(2).mean().sqrt() / exact.std()
    assert error < 0.03


def test_the_head_keeps_rows_beyond_the_tokenizer(tmp_path: Path) -> None:
    loaded = load_model(write_tiny_model(tmp_path, vocab_size=576), dtype=torch.float32)

    assert loaded.spec.vocab_size == 576
    assert our_logits(loaded, torch.arange(3)).shape == (3, 576)


def test_equal_seeds_write_equal_models(tmp_path: Path) -> None:
    first = load_model(write_tiny_model(tmp_path / "a", seed=5), dtype=torch.float32)
    second = load_model(write_tiny_model(tmp_path / "b", seed=5), dtype=torch.float32)
    other = load_model(write_tiny_model(tmp_path / "c", seed=6), dtype=torch.float32)

    assert torch.equal(first.model.embedding, second.model.embedding)
    assert not torch.equal(first.model.embedding, other.model.embedding)


def test_a_sliding_window_limits_the_context_with_a_notice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_tiny_model(tmp_path, family="mistral", sliding_window=256)

    with caplog.at_level(logging.WARNING):
        loaded = load_model(folder, dtype=torch.float32)

    assert loaded.spec.max_position == 256
    assert "sliding window of 256 tokens" in caplog.text
