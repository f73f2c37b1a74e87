"""Loading: every parameter is written once, and whatever does not fit is named."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from radixserve.errors import ModelLoadError
from radixserve.models.config import ModelSpec
from radixserve.models.decoder import CausalLM
from radixserve.models.loader import load_model
from tests.kit.tiny_model import random_weights, tiny_config, write_tiny_model

if TYPE_CHECKING:
    from pathlib import Path

INDEX = "model.safetensors.index.json"


def edit_weights(folder: Path, changes: dict[str, torch.Tensor | None]) -> None:
    weights: dict[str, Any] = load_file(folder / "model.safetensors")
    weights |= changes
    kept = {name: tensor for name, tensor in weights.items() if tensor is not None}
    save_file(kept, folder / "model.safetensors")


def write_shards(folder: Path, names: tuple[str, ...] = ("a.safetensors", "b.safetensors")) -> None:
    write_tiny_model(folder)
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    weight_map = {name: names[i % len(names)] for i, name in enumerate(sorted(weights))}
    for file_name in names:
        shard = {n: t for n, t in weights.items() if weight_map[n] == file_name}
        save_file(shard, folder / file_name)
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}), encoding="utf-8")


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [False, True])
def test_every_parameter_is_written_exactly_once(family: str, *, tied: bool) -> None:
    config = tiny_config(family, tie_word_embeddings=tied, attention_bias=True, mlp_bias=True)
    model = CausalLM(ModelSpec.from_hf(config), dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()

        for target in model.checkpoint_targets().values():
            target.add_(1)

    assert all(bool((parameter == 1).all()) for parameter in model.parameters())


def test_a_tied_head_is_the_embedding(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, tie_word_embeddings=True)
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")

    model = load_model(folder, dtype=torch.float32).model

    assert model.head is model.embedding


def test_a_tied_head_may_be_saved_twice(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, tie_word_embeddings=True)
    embedding = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
    edit_weights(folder, {"lm_head.weight": embedding.clone()})

    model = load_model(folder, dtype=torch.bfloat16).model

    assert torch.equal(model.head, embedding.bfloat16())


def test_a_tied_config_with_another_head_is_refused(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, tie_word_embeddings=True)
    edit_weights(folder, {"lm_head.weight": torch.zeros(512, 64)})

    with pytest.raises(ModelLoadError, match=r"lm_head\.weight differs"):
        load_model(folder, dtype=torch.float32)


def test_an_untied_config_without_a_head_is_refused(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path)
    edit_weights(folder, {"lm_head.weight": None})

    with pytest.raises(ModelLoadError, match=r"lm_head\.weight is missing"):
        load_model(folder, dtype=torch.float32)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model.layers.1.mlp.up_proj.weight": None}, r"layers\.1\.mlp\.up_proj\.weight"),
        ({"model.layers.0.self_attn.q_proj.bias": torch.zeros(64)}, r"q_proj\.bias"),
        ({"model.layers.2.mlp.up_proj.weight": torch.zeros(1)}, r"layers\.2\.mlp"),
        ({"model.norm.weight": torch.ones(65)}, r"model\.norm\.weight has shape \[65\]"),
        (
            {"model.norm.weight": torch.ones(64).to(torch.int8)},
            r"model\.norm\.weight is torch\.int8",
        ),
        ({"model.norm.weight": torch.ones(64, 1)}, r"shape \[64, 1\]"),
    ],
)
def test_weights_that_do_not_match_the_config_are_named(
    changes: dict[str, torch.Tensor | None], named: str, tmp_path: Path
) -> None:
    folder = write_tiny_model(tmp_path)
    edit_weights(folder, changes)

    with pytest.raises(ModelLoadError, match=named):
        load_model(folder, dtype=torch.float32)


def test_saved_rotary_buffers_are_ignored(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path)
    edit_weights(folder, {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)})

    assert load_model(folder, dtype=torch.float32).spec.num_layers == 2


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float32])
def test_weights_are_converted_to_the_dtype_asked_for(stored: torch.dtype, tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path)
    weights = {n: t.to(stored) for n, t in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors")

    model = load_model(folder, dtype=torch.float32).model

    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert torch.equal(model.embedding, weights["model.embed_tokens.weight"].float())


def test_shards_are_read_by_their_index(tmp_path: Path) -> None:
    write_shards(tmp_path)

    model = load_model(tmp_path, dtype=torch.float32).model

    expected = random_weights(tiny_config())["model.embed_tokens.weight"]
    assert torch.equal(model.embedding, expected)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    write_shards(tmp_path)
    (tmp_path / "b.safetensors").unlink()

    with pytest.raises(ModelLoadError, match=r"lacks b\.safetensors"):
        load_model(tmp_path, dtype=torch.float32)


def test_a_shard_that_lacks_a_promised_tensor_is_named(tmp_path: Path) -> None:
    write_shards(tmp_path)
    shard = load_file(tmp_path / "b.safetensors")
    shard.pop(max(shard))
    save_file(shard, tmp_path / "b.safetensors")

    with pytest.raises(ModelLoadError, match=r"b\.safetensors cannot be read"):
        load_model(tmp_path, dtype=torch.float32)


def test_a_file_outside_the_index_is_left_out_with_a_notice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_shards(tmp_path)
    save_file({"stray": torch.ones(1)}, tmp_path / "stray.safetensors")

    with caplog.at_level(logging.WARNING):
        load_model(tmp_path, dtype=torch.float32)

    assert "stray.safetensors" in caplog.text


def test_without_an_index_all_files_are_read(tmp_path: Path) -> None:
    write_shards(tmp_path)
    (tmp_path / INDEX).unlink()

    assert load_model(tmp_path, dtype=torch.float32).spec.num_layers == 2


def test_without_an_index_a_missing_file_shows_as_missing_tensors(tmp_path: Path) -> None:
    write_shards(tmp_path)
    (tmp_path / INDEX).unlink()
    (tmp_path / "b.safetensors").unlink()

    with pytest.raises(ModelLoadError, match="the weights lack"):
        load_model(tmp_path, dtype=torch.float32)


def test_two_files_with_the_same_tensor_are_named(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path)
    save_file({"model.norm.weight": torch.ones(64)}, folder / "other.safetensors")

    with pytest.raises(ModelLoadError, match=r"model.safetensors and other.safetensors"):
        load_model(folder, dtype=torch.float32)


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])

    with pytest.raises(ModelLoadError, match=r"model\.safetensors cannot be read"):
        load_model(folder, dtype=torch.float32)


@pytest.mark.parametrize("index", ['{"weight_map": {}}', "{}", "nonsense"])
def test_a_broken_index_is_named(index: str, tmp_path: Path) -> None:
    write_shards(tmp_path)
    (tmp_path / INDEX).write_text(index, encoding="utf-8")

    with pytest.raises(ModelLoadError, match=r"index\.json"):
        load_model(tmp_path, dtype=torch.float32)


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    (write_tiny_model(tmp_path) / "model.safetensors").unlink()

    with pytest.raises(ModelLoadError, match=r"no \*\.safetensors"):
        load_model(tmp_path, dtype=torch.float32)


@pytest.mark.parametrize(
    ("config_ids", "generation_ids", "expected"),
    [
        (None, None, set()),
        (2, None, {2}),
        ([2, 5], None, {2, 5}),
        (2, [2, 0], {0, 2}),
        (2, 7, {7}),
    ],
)
def test_the_end_ids_come_from_the_generation_config_first(
    config_ids: object, generation_ids: object, expected: set[int], tmp_path: Path
) -> None:
    folder = write_tiny_model(tmp_path, eos_token_id=config_ids)
    if generation_ids is not None:
        document = json.dumps({"eos_token_id": generation_ids})
        (folder / "generation_config.json").write_text(document, encoding="utf-8")

    assert load_model(folder, dtype=torch.float32).eos_token_ids == expected


def test_end_ids_that_are_no_ids_are_refused(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, eos_token_id="</s>")

    with pytest.raises(ModelLoadError, match="eos_token_id"):
        load_model(folder, dtype=torch.float32)
