"""The real model: what `pull_default_model` left in the cache, against transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from tokenizers import Tokenizer
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from radixserve.models.cache_folder import is_complete
from radixserve.models.default_model import default_model_folder
from radixserve.models.loader import LoadedModel, load_model
from tests.kit.dense_attention import DenseAttention

if TYPE_CHECKING:
    from pathlib import Path

PROMPT = (
    "The capital of France is Paris. The capital of Italy is Rome. In 1990, version 1.2 of the "
    "program printed 22 lines; by 2018 it printed 1,500. The capital of Spain is"
)
pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def folder() -> Path:
    folder = default_model_folder()
    if not is_complete(folder):
        pytest.skip(f"the default model's weights are not in {folder}: run 'radixserve pull'")
    return folder


@pytest.fixture(scope="module")
def loaded(folder: Path) -> LoadedModel:
    return load_model(folder, dtype=torch.float32)


@pytest.fixture(scope="module")
def prompt_ids(folder: Path) -> torch.Tensor:
    return torch.tensor(Tokenizer.from_file(str(folder / "tokenizer.json")).encode(PROMPT).ids)


def test_logits_equal_transformers(
    folder: Path, loaded: LoadedModel, prompt_ids: torch.Tensor
) -> None:
    reference = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )

    with torch.inference_mode():
        expected = reference(prompt_ids[None]).logits[0]
        positions = torch.arange(prompt_ids.shape[0])
        hidden = loaded.model(prompt_ids, positions, DenseAttention())
        ours = loaded.model.compute_logits(hidden)

    torch.testing.assert_close(ours, expected, atol=1e-3, rtol=1e-3)
    assert torch.equal(ours.argmax(-1), expected.argmax(-1))


def test_greedy_text_names_the_capital(folder: Path, loaded: LoadedModel) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    attention = DenseAttention()
    ids = tokenizer.encode("The capital of France is").ids
    rows, written = torch.tensor(ids), 0

    with torch.inference_mode():
        while len(ids) < 8:
            positions = torch.arange(written, written + rows.shape[0])
            hidden = loaded.model(rows, positions, attention)
            written += rows.shape[0]
            ids.append(int(loaded.model.compute_logits(hidden[-1:]).argmax()))
            rows = torch.tensor(ids[-1:])

    assert tokenizer.decode(ids).startswith("The capital of France is Paris.")


def test_digits_are_single_tokens(folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    tokens = tokenizer.encode("a  1 and 22 v1.2 x3 1990s").tokens

    assert tokens == [
        *("a", "ĠĠ", "1", "Ġand", "Ġ", "2", "2", "Ġv", "1", ".", "2", "Ġx", "3", "Ġ"),
        *("1", "9", "9", "0", "s"),
    ]


def test_an_answer_ends_with_either_end_token(folder: Path, loaded: LoadedModel) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    ends = [tokenizer.token_to_id(token) for token in ("<|im_end|>", "<|endoftext|>")]

    assert loaded.eos_token_ids == set(ends) == {0, 2}
