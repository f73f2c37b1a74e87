"""Text to token ids and back, on the `tokenizers` library.

`tokenizer.json` is read by that library directly, so that no transformers import is needed. Two
of its stored settings are switched off: a server neither truncates nor pads a prompt.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from tokenizers import Tokenizer as Backend

from radixserve.errors import InvalidRequestError, ModelLoadError
from radixserve.text.token_bytes import TokenBytes
from radixserve.text.tokenizer_files import TokenizerSettings, read_settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


OLDER_FILES = ("*.model", "vocab.*", "*.tiktoken")
"""Tokenizer files that transformers can convert."""


class Tokenizer:
    """One model's tokenizer.

    Args:
        backend: The library's tokenizer; it is taken over, and its truncation, padding and list of
            special tokens are changed.
        settings: What the model folder says about special tokens.
    """

    def __init__(self, backend: Backend, settings: TokenizerSettings) -> None:
        backend.no_truncation()
        backend.no_padding()
        _mark_as_special(backend, settings.named_tokens)
        self.backend = backend
        self._settings = settings

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """Return the tokenizer of a model folder.

        Raises:
            ModelLoadError: No tokenizer can be read from the folder; the message names the file.
        """
        path = folder / "tokenizer.json"
        if not path.is_file():
            return cls(_convert_slow_tokenizer(folder), read_settings(folder))
        try:
            backend = Backend.from_file(str(path))
        except Exception as error:  # the library raises bare Exception for all faults of a file
            raise ModelLoadError(f"{path} cannot be read as a tokenizer: {error}") from error
        return cls(backend, read_settings(folder))

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of `text`; special tokens written out in it become their own ids.

        A prompt that begins with the BOS text keeps that one BOS, so a rendered chat and the same
        string sent as a plain prompt have the same ids.

        Args:
            text: Any valid Unicode text.
            add_special_tokens: Add what this tokenizer itself adds around a prompt, mostly a BOS.

        Raises:
            InvalidRequestError: The text has a lone surrogate.
        Source: sgl-project/sglang#888, vllm-project/vllm#16976.
        """
        _refuse_lone_surrogates(text)
        ids = self.backend.encode(text, add_special_tokens=False).ids
        return self.with_special_tokens(ids) if add_special_tokens else ids

    def with_special_tokens(self, ids: list[int]) -> list[int]:
        """Return `ids` between this tokenizer's own opening and closing ids, none of them twice."""
        before, after = self._affixes
        if ids[: len(before)] == before:
            before = []
        return [*before, *ids, *after]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of `ids`; ids outside the vocabulary stand for no text."""
        known = [i for i in ids if 0 <= i < self.vocab_size]
        return self.backend.decode(known, skip_special_tokens=skip_special_tokens)

    @cached_property
    def vocab_size(self) -> int:
        """One more than the largest id that has a token."""
        return max(self.backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @property
    def settings(self) -> TokenizerSettings:
        """What the model folder says about special tokens."""
        return self._settings

    @property
    def named_tokens(self) -> Mapping[str, str]:
        """The text of each named token that the model sets, by its name in chat templates."""
        return self._settings.named_tokens

    @cached_property
    def special_tokens(self) -> Mapping[str, int]:
        """Every special token's text and id."""
        added = self.backend.get_added_tokens_decoder()
        return {token.content: i for i, token in sorted(added.items()) if token.special}

    @cached_property
    def token_bytes(self) -> TokenBytes:
        """What each token contributes to a text."""
        return TokenBytes(self.backend)

    @property
    def bos_token_id(self) -> int | None:
        """The id of the beginning-of-sequence token, where the model has one."""
        return self._named_id("bos_token")

    @cached_property
    def eos_token_ids(self) -> frozenset[int]:
        """Every id that ends a sequence."""
        eos = self._named_id("eos_token")
        return self._settings.eos_token_ids | (frozenset() if eos is None else {eos})

    def _named_id(self, name: str) -> int | None:
        text = self.named_tokens.get(name)
        return None if text is None else self.backend.token_to_id(text)

    @cached_property
    def _affixes(self) -> tuple[list[int], list[int]]:
        """The ids that go before and after every prompt."""
        plain = self.backend.encode("a", add_special_tokens=False).ids
        full = self.backend.encode("a", add_special_tokens=True).ids
        starts = range(len(full) - len(plain) + 1)
        start = next((i for i in starts if full[i : i + len(plain)] == plain), 0)
        return self._adjust_bos(full[:start]), full[start + len(plain) :]

    def _adjust_bos(self, before: list[int]) -> list[int]:
        """Let an explicit `add_bos_token` win over the post-processor, as transformers does."""
        bos = self.bos_token_id
        if bos is None or self._settings.adds_bos is None:
            return before
        others = [i for i in before if i != bos]
        return [bos, *others] if self._settings.adds_bos else others


def _mark_as_special(backend: Backend, named_tokens: Mapping[str, str]) -> None:
    """A token that the config names is special, even if `tokenizer.json` forgot to say so.

    Tokens without an id are left out: the model has no embedding for an id made up here.
    """
    known = [text for text in named_tokens.values() if backend.token_to_id(text) is not None]
    backend.add_special_tokens(list(dict.fromkeys(known)))


def _convert_slow_tokenizer(folder: Path) -> Backend:
    # Old model folders hold only a SentencePiece file, which transformers can convert. Imported
    # below because it costs seconds that no other folder should pay.
    missing = f"{folder / 'tokenizer.json'} does not exist"
    if not any(path for pattern in OLDER_FILES for path in folder.glob(pattern)):
        raise ModelLoadError(f"{missing}, and the folder has no other tokenizer file")
    from transformers import AutoTokenizer

    try:
        converted = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # transformers raises many kinds, according to what is missing
        raise ModelLoadError(
            f"{missing}, and transformers cannot convert another: {error}"
        ) from error
    backend = getattr(converted, "backend_tokenizer", None)
    if not isinstance(backend, Backend) or not backend.get_vocab_size():
        raise ModelLoadError(f"{missing}, and the folder has no other usable tokenizer file")
    return backend


def _refuse_lone_surrogates(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        code = f"U+{ord(text[error.start]):04X}"
        raise InvalidRequestError(
            f"The text is not valid Unicode: character {error.start} is the lone surrogate {code}."
        ) from error
