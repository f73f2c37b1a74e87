"""GGUF files, written here with the `gguf` package, become folders that load."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from radixserve.errors import ModelLoadError
from radixserve.models.config import ModelSpec
from radixserve.models.gguf_import import import_gguf
from radixserve.models.loader import load_model
from radixserve.models.rotary import inverse_frequencies
from radixserve.models.rotary_config import parse_rotary
from radixserve.models.safetensors_writer import SafetensorsWriter
from tests.kit.recorded_progress import RecordedProgress
from tests.kit.tiny_gguf import write_tiny_gguf

REPOSITORY = Path(__file__).parents[2]
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RADIXSERVE_CACHE", str(tmp_path / "cache"))


def config_of(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return document


def llama3_factors(head_dim: int) -> np.ndarray[Any, Any]:
    theta = {"rope_theta": 10000.0}
    plain, _ = inverse_frequencies(parse_rotary(theta), head_dim)
    scaled, _ = inverse_frequencies(parse_rotary(theta | {"rope_scaling": LLAMA3}), head_dim)
    return (plain / scaled).numpy()


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [False, True])
def test_weights_come_back_under_their_names(family: str, *, tied: bool, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    weights = write_tiny_gguf(path, family=family, tie_word_embeddings=tied)

    folder = import_gguf(path)

    stored = load_file(folder / "model.safetensors")
    assert stored.keys() == weights.keys()
    for name, tensor in weights.items():
        assert torch.equal(stored[name], tensor.bfloat16()), name
    loaded = load_model(folder, dtype=torch.float32)
    assert loaded.spec.tie_word_embeddings is tied
    assert loaded.eos_token_ids == {0, 2}


@pytest.mark.parametrize("name", ["F16", "Q8_0", "Q4_1"])
def test_quantised_weights_are_close(name: str, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    weights = write_tiny_gguf(path, quantisation=gguf.GGMLQuantizationType[name])

    stored = load_file(import_gguf(path) / "model.safetensors")

    wanted = weights["model.layers.1.self_attn.q_proj.weight"]
    error = stored["model.layers.1.self_attn.q_proj.weight"].float() - wanted
    assert error.pow(2).mean().sqrt() < 0.1 * wanted.std()


def test_settings_are_read_as_they_were_before_float32(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(path, rope_theta=500000.0)

    config = config_of(import_gguf(path))

    assert config["rms_norm_eps"] == 1e-5
    assert config["rope_theta"] == 500000.0
    assert ModelSpec.from_hf(config).rotary.kind == "default"


def test_a_file_is_converted_once_and_again_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(path)
    first, progress = import_gguf(path), RecordedProgress()

    assert import_gguf(path, progress=progress) == first
    assert progress.steps == []

    path.write_bytes(path.read_bytes() + bytes(32))
    assert import_gguf(path, progress=progress) != first
    assert progress.steps[-1].done == progress.steps[-1].total


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("gpt-2", ["a", "Ġ", "Ġ22", "Ġv", "1", ".", "2", "Ġx", "3", "Ġ1990", "s"]),
        ("smollm", ["a", "ĠĠ", "2", "2", "Ġv", "1", ".", "2", "Ġx", "3", "Ġ", "1", "9"]),
        ("qwen2", ["a", "Ġ", "Ġ", "2", "2", "Ġv", "1", ".", "2", "Ġx", "3", "Ġ"]),
        ("llama-bpe", ["a", "Ġ", "Ġ", "22", "Ġv", "1", ".", "2", "Ġx", "3", "Ġ", "199", "0", "s"]),
    ],
)
def test_text_is_cut_as_the_file_says(pre: str, pieces: list[str], tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(path, pre=pre)

    tokenizer = Tokenizer.from_file(str(import_gguf(path) / "tokenizer.json"))

    cut = [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str("a  22 v1.2 x3 1990s")]
    assert cut[: len(pieces)] == pieces
    text = "the parrot: 1990s, déjà vu 🦜"
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids) == text


@pytest.mark.parametrize(("adds_bos", "first"), [(True, 1), (False, 0)])
def test_a_bos_token_is_added_where_the_file_asks(
    *, adds_bos: bool, first: int, tmp_path: Path
) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(path, extra={"tokenizer.ggml.add_bos_token": adds_bos})

    tokenizer = Tokenizer.from_file(str(import_gguf(path) / "tokenizer.json"))

    assert tokenizer.encode("<|endoftext|>the").ids[0] == first


def test_the_chat_template_is_in_both_places(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(path)

    folder = import_gguf(path)

    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert config["chat_template"] == (folder / "chat_template.jinja").read_text(encoding="utf-8")
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert config["model_max_length"] == 2048
    assert (config["bos_token"], config["eos_token"]) == ("<|im_start|>", "<|im_end|>")


def test_llama_3_factors_become_its_settings_again(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(path, extra_tensors={"rope_freqs.weight": llama3_factors(16)})

    assert config_of(import_gguf(path))["rope_scaling"] == LLAMA3


def test_yarn_is_read(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    scaling = {"type": "yarn", "factor": 4.0, "original_context_length": 512}
    write_tiny_gguf(path, extra={f"llama.rope.scaling.{k}": v for k, v in scaling.items()})

    rotary = ModelSpec.from_hf(config_of(import_gguf(path))).rotary

    assert (rotary.kind, rotary.factor, rotary.original_max_position) == ("yarn", 4.0, 512)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"pre": "jina-v2-de"}, "'jina-v2-de'"),
        ({"extra": {"llama.rope.scaling.type": "longrope"}}, "'longrope'"),
        ({"extra": {"llama.expert_count": 8}}, "mixture-of-experts"),
        ({"extra": {"split.count": 3}}, "one part of a split model"),
        ({"extra_tensors": {"blk.0.ssm_a": np.ones(4, np.float32)}}, "ssm_a"),
        ({"extra_tensors": {"rope_freqs.weight": np.arange(1, 9, dtype=np.float32)}}, "rope_freqs"),
    ],
)
def test_what_cannot_be_converted_is_named_and_leaves_nothing(
    arguments: dict[str, Any], named: str, tmp_path: Path
) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(path, **arguments)

    with pytest.raises(ModelLoadError, match=named):
        import_gguf(path)

    assert list((tmp_path / "cache" / "models").iterdir()) == []


def test_a_file_that_is_not_gguf_is_named(tmp_path: Path) -> None:
    (tmp_path / "fake.gguf").write_bytes(b"not a model at all" * 10)

    with pytest.raises(ModelLoadError, match=r"fake\.gguf cannot be read as a GGUF file"):
        import_gguf(tmp_path / "fake.gguf")
    with pytest.raises(ModelLoadError, match=r"missing\.gguf"):
        import_gguf(tmp_path / "missing.gguf")


def test_a_folder_that_hides_the_gguf_package_is_named(tmp_path: Path) -> None:
    (tmp_path / "gguf").mkdir()
    (tmp_path / "gguf" / "__init__.py").touch()
    code = (
        f"import sys; sys.path.append({str(REPOSITORY)!r})\n"
        "from pathlib import Path\n"
        "from radixserve.models.gguf_file import GGUFFile\n"
        "GGUFFile(Path('x.gguf'))\n"
    )

    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert "ModelLoadError: a folder named 'gguf'" in result.stderr
    assert str(tmp_path / "gguf") in result.stderr


def test_a_shard_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    writer = SafetensorsWriter(tmp_path / "missing")
    writer.add("t", torch.ones(1))

    with pytest.raises(ModelLoadError, match="missing"):
        writer.close()


def test_a_large_model_is_written_in_shards(tmp_path: Path) -> None:
    writer = SafetensorsWriter(tmp_path, shard_bytes=100)
    tensors = {f"t{i}": torch.full((10,), float(i)) for i in range(5)}  # 40 bytes each

    for name, tensor in tensors.items():
        writer.add(name, tensor)
    writer.close()

    index = json.loads((tmp_path / "model.safetensors.index.json").read_text(encoding="utf-8"))
    assert set(index["weight_map"]) == set(tensors)
    assert index["metadata"]["total_size"] == 200
    for name, file_name in index["weight_map"].items():
        assert torch.equal(load_file(tmp_path / file_name)[name], tensors[name])
    assert sorted(p.name for p in tmp_path.glob("*.safetensors")) == [
        f"model-{i:05}-of-00003.safetensors" for i in (1, 2, 3)
    ]
