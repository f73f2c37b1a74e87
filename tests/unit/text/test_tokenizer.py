from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixserve.errors import InvalidRequestError, ModelLoadError
from radixserve.text.tokenizer import Tokenizer
from radixserve.text.tokenizer_files import TokenizerSettings
from tests.kit.tiny_tokenizer import train_tiny_tokenizer, write_tiny_tokenizer
from tests.unit.text.sentencepiece_like import train_sentencepiece_like

if TYPE_CHECKING:
    from pathlib import Path


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def add_to_config(folder: Path, **more: Any) -> None:
    path = folder / "tokenizer_config.json"
    write_json(path, json.loads(path.read_text(encoding="utf-8")) | more)


def test_the_tiny_tokenizer_is_what_other_tests_count_on(tokenizer: Tokenizer) -> None:
    assert tokenizer.vocab_size >= 300
    assert dict(tokenizer.special_tokens) == {
        "<|endoftext|>": 0,
        "<|im_start|>": 1,
        "<|im_end|>": 2,
    }
    assert tokenizer.bos_token_id == 1
    assert tokenizer.eos_token_ids == {2}


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_comes_back_from_its_ids(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_written_out_special_tokens_become_their_own_ids(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("<|im_start|>hi<|im_end|>")[::3] == [1, 2]


def test_special_tokens_can_be_kept_in_the_text(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("<|im_start|>hi<|im_end|>")

    assert tokenizer.decode(ids) == "hi"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<|im_start|>hi<|im_end|>"


def test_ids_outside_the_vocabulary_have_no_text(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("hi")

    assert tokenizer.decode([-1, *ids, tokenizer.vocab_size, 2**40]) == "hi"


def test_every_id_below_the_vocabulary_size_has_a_token(tokenizer: Tokenizer) -> None:
    tokens = [tokenizer.backend.id_to_token(i) for i in range(tokenizer.vocab_size + 1)]

    assert None not in tokens[:-1]
    assert tokens[-1] is None


def test_a_lone_surrogate_is_refused_with_its_place(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequestError, match=r"character 2 is the lone surrogate U\+D83D"):
        tokenizer.encode("ab\ud83d")


def test_no_bos_is_added_by_a_tokenizer_that_adds_none(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("hi") == tokenizer.encode("hi", add_special_tokens=False)


def test_a_post_processor_adds_its_bos_once() -> None:
    tokenizer = Tokenizer(train_sentencepiece_like(), TokenizerSettings({"bos_token": "<s>"}))
    plain = tokenizer.encode("hi", add_special_tokens=False)

    assert tokenizer.encode("hi") == [1, *plain]
    assert tokenizer.encode("<s>hi").count(1) == 1
    assert tokenizer.encode("") == [1]


def test_the_config_can_ask_for_a_bos(tmp_path: Path) -> None:
    folder = write_tiny_tokenizer(tmp_path)
    add_to_config(folder, add_bos_token=True)
    tokenizer = Tokenizer.from_folder(folder)

    assert tokenizer.encode("hi")[0] == 1
    assert tokenizer.encode("<|im_start|>hi").count(1) == 1
    assert 1 not in tokenizer.encode("hi", add_special_tokens=False)


def test_the_config_can_refuse_the_post_processors_bos() -> None:
    settings = TokenizerSettings({"bos_token": "<s>"}, adds_bos=False)

    assert 1 not in Tokenizer(train_sentencepiece_like(), settings).encode("hi")


def test_a_truncation_stored_in_the_file_is_not_applied(tmp_path: Path) -> None:
    folder = write_tiny_tokenizer(tmp_path)
    backend = train_tiny_tokenizer()
    backend.enable_truncation(4)
    backend.enable_padding(length=8)
    backend.save(str(folder / "tokenizer.json"))

    tokenizer = Tokenizer.from_folder(folder)

    assert len(tokenizer.encode("0123456789")) == 10
    assert len(tokenizer.encode("0")) == 1


def test_end_ids_come_from_the_generation_config_and_the_eos_token(tmp_path: Path) -> None:
    folder = write_tiny_tokenizer(tmp_path)
    write_json(folder / "config.json", {"eos_token_id": 7})
    assert Tokenizer.from_folder(folder).eos_token_ids == {2, 7}

    write_json(folder / "generation_config.json", {"eos_token_id": [0, 5]})
    assert Tokenizer.from_folder(folder).eos_token_ids == {0, 2, 5}


def test_named_tokens_may_be_objects_and_may_lie_in_the_older_file(tmp_path: Path) -> None:
    folder = write_tiny_tokenizer(tmp_path)
    write_json(folder / "tokenizer_config.json", {"bos_token": None, "eos_token": "<|im_end|>"})
    write_json(folder / "special_tokens_map.json", {"pad_token": {"content": "<|endoftext|>"}})
    tokenizer = Tokenizer.from_folder(folder)

    assert tokenizer.named_tokens == {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    assert tokenizer.bos_token_id is None


def test_a_token_that_the_config_names_is_special_even_if_its_file_does_not_say_so() -> None:
    backend = train_tiny_tokenizer(special_tokens=())
    backend.add_tokens(["<eot>"])
    tokenizer = Tokenizer(backend, TokenizerSettings({"eos_token": "<eot>", "bos_token": "<no>"}))
    ids = tokenizer.encode("hi<eot>")

    assert tokenizer.decode(ids) == "hi"
    assert "<no>" not in tokenizer.special_tokens


def test_a_folder_without_a_tokenizer_names_the_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)


def test_an_older_folder_is_converted_by_transformers(tmp_path: Path) -> None:
    ours = train_tiny_tokenizer()
    ours.model.save(str(tmp_path))
    write_json(tmp_path / "tokenizer_config.json", {"tokenizer_class": "GPT2Tokenizer"})

    tokenizer = Tokenizer.from_folder(tmp_path)

    assert tokenizer.encode("the parrot") == ours.encode("the parrot").ids


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_broken_file_is_named(tmp_path: Path, name: str) -> None:
    folder = write_tiny_tokenizer(tmp_path)
    (folder / name).write_text("{", encoding="utf-8")

    with pytest.raises(ModelLoadError, match=name):
        Tokenizer.from_folder(folder)


def test_reading_a_tokenizer_loads_neither_torch_nor_transformers(folder: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from radixserve.text.tokenizer import Tokenizer\n"
        "from radixserve.text.chat_template import ChatTemplate\n"
        "folder = Path(sys.argv[1])\n"
        "ChatTemplate.from_folder(folder, Tokenizer.from_folder(folder))\n"
        "sys.exit(int('torch' in sys.modules or 'transformers' in sys.modules))"
    )

    assert subprocess.run([sys.executable, "-c", code, str(folder)], check=False).returncode == 0
