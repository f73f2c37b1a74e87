"""What a model folder says about its tokenizer, besides `tokenizer.json` itself."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from radixserve.errors import ModelLoadError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

NAMED_TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)


@dataclass(frozen=True, slots=True)
class TokenizerSettings:
    """The named tokens of a model and how its authors want prompts to begin."""

    named_tokens: Mapping[str, str]
    """Name to text, such as `bos_token` to `<s>`; only the names that the model sets."""
    adds_bos: bool | None = None
    """`add_bos_token` of the config; None leaves it to the tokenizer's own post-processor."""
    eos_token_ids: frozenset[int] = frozenset()
    """End-of-sequence ids of the generation config, besides `eos_token`."""


def read_settings(folder: Path) -> TokenizerSettings:
    """Return the tokenizer settings of a model folder; files that are absent say nothing.

    Raises:
        ModelLoadError: A file is there and is not a JSON object.
    """
    config = read_json(folder / "tokenizer_config.json")
    adds_bos = config.get("add_bos_token")
    return TokenizerSettings(
        named_tokens=dict(_named_tokens(read_json(folder / "special_tokens_map.json") | config)),
        adds_bos=adds_bos if isinstance(adds_bos, bool) else None,
        eos_token_ids=_eos_token_ids(folder),
    )


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in `path`, or an empty one where there is no such file.

    Raises:
        ModelLoadError: The file cannot be read or does not hold a JSON object.
    """
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path} must hold a JSON object, not {type(value).__name__}")
    return value


def _named_tokens(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name in NAMED_TOKENS:
        token = config.get(name)
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str) and text:
            yield name, text


def _eos_token_ids(folder: Path) -> frozenset[int]:
    """The generation config knows best: a chat model often adds its end of turn only there."""
    for name in ("generation_config.json", "config.json"):
        value = read_json(folder / name).get("eos_token_id")
        if value is not None:
            return frozenset(value if isinstance(value, list) else [value])
    return frozenset()
