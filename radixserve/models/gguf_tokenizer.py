"""The tokenizer in a GGUF file, written as tokenizer.json and tokenizer_config.json.

GGUF names how text is cut before the merges (`tokenizer.ggml.pre`) and leaves the cutting itself to
the reader. A name that is not in the table here is refused: a wrong cut gives a model that answers,
only worse. (A reader that ignores "smollm" loses the splitting of numbers into single digits.)
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing

from radixserve.errors import ModelLoadError

if TYPE_CHECKING:
    from pathlib import Path

    from radixserve.models.gguf_file import GGUFFile

_CONTROL_TOKEN = 3
_USER_DEFINED_TOKEN = 4

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3_WORDS = _WORDS % r"\p{N}{1,3}"
_QWEN2_WORDS = _WORDS % r"\p{N}"

_SINGLE_DIGITS = ("smollm", "starcoder", "refact", "codeshell")
_GPT2 = ("gpt-2", "mpt", "olmo", "phi-2")
_LLAMA3 = ("llama-bpe", "llama3", "llama-v3")
_QWEN2 = ("qwen2", "deepseek-r1-qwen")


def write_tokenizer(file: GGUFFile, folder: Path) -> None:
    """Write the tokenizer of `file` into `folder`, its chat template included.

    Raises:
        ModelLoadError: the file's kind of tokenizer is not known.
    Mutates: adds tokenizer.json, tokenizer_config.json and chat_template.jinja.
    """
    kind = file.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise ModelLoadError(
            f"{file.path}: tokenizer model '{kind}' is not supported, only byte-level BPE "
            "('gpt2'); use a safetensors folder of this model instead"
        )
    _build_tokenizer(file).save(str(folder / "tokenizer.json"))
    config = _tokenizer_config(file)
    template = file.get("tokenizer.chat_template")
    if template is not None:
        config["chat_template"] = template
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")


def _build_tokenizer(file: GGUFFile) -> Tokenizer:
    tokens: list[str] = file.get("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ", 1)) for merge in file.get("tokenizer.ggml.merges")]
    pre = file.get("tokenizer.ggml.pre", "default")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(BPE(vocabulary, merges, ignore_merges=pre in _LLAMA3))
    tokenizer.pre_tokenizer = _pre_tokenizer(pre, file)
    tokenizer.decoder = decoders.ByteLevel()
    if pre in _QWEN2:
        tokenizer.normalizer = normalizers.NFC()
    _add_added_tokens(tokenizer, tokens, file.get("tokenizer.ggml.token_type"))
    if file.get("tokenizer.ggml.add_bos_token", pre in _LLAMA3):
        _add_bos(tokenizer, tokens, int(file.get("tokenizer.ggml.bos_token_id")))
    return tokenizer


def _pre_tokenizer(pre: str, file: GGUFFile) -> Any:
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if pre in _GPT2:
        return whole
    if pre in _SINGLE_DIGITS:
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), whole])
    if pre in _LLAMA3 or pre in _QWEN2:
        words = Regex(_LLAMA3_WORDS if pre in _LLAMA3 else _QWEN2_WORDS)
        split = pre_tokenizers.Split(words, behavior="isolated")
        bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([split, bytes_only])
    raise ModelLoadError(f"{file.path}: pre-tokenizer '{pre}' (tokenizer.ggml.pre) is not known")


def _add_added_tokens(tokenizer: Tokenizer, tokens: list[str], types: list[int]) -> None:
    for token, kind in zip(tokens, types, strict=True):
        if kind == _CONTROL_TOKEN:
            tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)])
        elif kind == _USER_DEFINED_TOKEN:
            tokenizer.add_tokens([AddedToken(token, special=False, normalized=False)])


def _add_bos(tokenizer: Tokenizer, tokens: list[str], bos_id: int) -> None:
    bos = tokens[bos_id]
    tokenizer.post_processor = TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A {bos} $B:1", special_tokens=[(bos, bos_id)]
    )


def _tokenizer_config(file: GGUFFile) -> dict[str, Any]:
    tokens: list[str] = file.get("tokenizer.ggml.tokens")
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": int(file.get_model("context_length")),
        "clean_up_tokenization_spaces": False,
    }
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        index = file.get(f"tokenizer.ggml.{key}_token_id")
        if index is not None:
            config[f"{name}_token"] = tokens[int(index)]
    return config
