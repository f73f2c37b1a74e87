"""Keeps control tokens that a caller typed from becoming control tokens.

    content                     hi<|im_end|>
    hide      -> template sees  hi\\U00100000                     one private character per token
    render    -> rendered       <|im_start|>user\\nhi\\U00100000<|im_end|>
    encode: 1 the template's    \\U000F0001user\\nhi\\U00100000\\U000F0002
              own markers become sentinels,
            2 what was hidden   \\U000F0001user\\nhi<|im_end|>\\U000F0002
              comes back, and
            3 a tokenizer that knows the sentinels but no special token encodes it all at once,
              so that no seam changes how the text between two markers is cut into tokens.

Nothing of this happens to a chat in which no control token was typed. A control token is an added
token with the flag `special`; other added tokens, such as `<tool_call>` in some models, are not.

Source: huggingface/transformers#29279.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from radixserve.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from radixserve.text.tokenizer import Tokenizer

FIRST_SENTINEL = 0xF0000
"""Private plane 15 stands for the template's markers."""
FIRST_PRIVATE = 0x100000
"""Private plane 16 stands for what is hidden from the template."""
SENTINELS = re.compile("[\U000f0000-\U000fffff]")
PRIVATE = re.compile("[\U00100000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class Hidden:
    """A value without control tokens, and what each private character in it stands for."""

    value: Any
    meaning: Mapping[str, str]

    def restore(self, text: str) -> str:
        """Return `text` with every hidden control token written out again."""
        for private, token in self.meaning.items():
            text = text.replace(private, token)
        return text


class ControlTokens:
    """The control tokens of one model.

    Args:
        tokenizer: The model's tokenizer.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tokens = tuple(sorted(tokenizer.special_tokens, key=len, reverse=True))

    def hide(self, value: Any) -> Hidden:
        """Return a copy of a JSON value in which private characters stand for control tokens.

        Raises:
            InvalidRequestError: The value has both control tokens and characters of plane 15.
        Mutates: nothing.
        Complexity: O(characters * control tokens), by substring search.
        """
        strings = list(iter_strings(value))
        found = [token for token in self._tokens if any(token in text for text in strings)]
        if not found:
            return Hidden(map_strings(value, str), {})
        if any(SENTINELS.search(text) for text in strings):
            raise InvalidRequestError(
                "The messages have both control tokens and private-use characters "
                "(U+F0000 to U+FFFFF); leave out one of them.",
                param="messages",
            )
        names = dict(zip(found, private_characters(strings), strict=False))
        pattern = _any_of(found)
        hidden = map_strings(value, lambda text: pattern.sub(lambda m: names[m[0]], text))
        return Hidden(hidden, dict(_meanings(names)))

    def encode(self, rendered: str, hidden: Hidden, *, is_first: bool = True) -> list[int]:
        """Return the ids of a rendered chat in which hidden control tokens are plain text.

        Args:
            is_first: Whether this is the beginning, which gets the model's first token.
        Raises:
            InvalidRequestError: The tokenizer has no way to write a control token as plain text.
        """
        if not hidden.meaning:
            return self._tokenizer.encode(rendered, add_special_tokens=is_first)
        marked = self._markers.sub(lambda m: self._sentinels[m[0]], rendered)
        text = hidden.restore(marked)
        ids = self._plain.encode(text).ids
        if any(i in self._special_ids and i not in self._true_ids for i in ids):
            raise InvalidRequestError(
                "This model's tokenizer cannot write the control tokens in the messages as text.",
                param="messages",
            )
        true = [self._true_ids.get(i, i) for i in ids]
        return self._tokenizer.with_special_tokens(true) if is_first else true

    @cached_property
    def _markers(self) -> re.Pattern[str]:
        return _any_of(self._tokens)

    @cached_property
    def _sentinels(self) -> dict[str, str]:
        return {token: chr(FIRST_SENTINEL + k) for k, token in enumerate(self._tokens)}

    @cached_property
    def _plain(self) -> Backend:
        """A tokenizer that shares the model's tables and has sentinels for its special tokens."""
        backend = self._tokenizer.backend
        plain = Backend(backend.model)
        if backend.normalizer is not None:
            plain.normalizer = backend.normalizer
        if backend.pre_tokenizer is not None:
            plain.pre_tokenizer = backend.pre_tokenizer
        added = [token for _, token in sorted(backend.get_added_tokens_decoder().items())]
        plain.add_tokens([self._stand_in(token) for token in added])
        return plain

    def _stand_in(self, token: AddedToken) -> AddedToken:
        """The same rules for white space and word borders, under another name."""
        return AddedToken(
            self._sentinels.get(token.content, token.content),
            single_word=token.single_word,
            lstrip=token.lstrip,
            rstrip=token.rstrip,
            normalized=token.normalized and not token.special,
            special=False,
        )

    @cached_property
    def _special_ids(self) -> frozenset[int]:
        return frozenset(self._tokenizer.special_tokens.values())

    @cached_property
    def _true_ids(self) -> dict[int, int]:
        """From the ids of the plain tokenizer's added tokens to the model's."""
        names = {sentinel: token for token, sentinel in self._sentinels.items()}
        model_ids = {
            token.content: i
            for i, token in self._tokenizer.backend.get_added_tokens_decoder().items()
        }
        return {
            i: model_ids[names.get(token.content, token.content)]
            for i, token in self._plain.get_added_tokens_decoder().items()
        }


def iter_strings(value: Any) -> Iterator[str]:
    """Yield every string in a JSON value, keys of objects too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from iter_strings(key)
            yield from iter_strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from iter_strings(item)


def map_strings(value: Any, change: Callable[[str], str]) -> Any:
    """Return a deep copy of a JSON value with every string in it changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {map_strings(key, change): map_strings(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [map_strings(item, change) for item in value]
    return value


def private_characters(strings: Iterable[str]) -> Iterator[str]:
    """Yield private characters that occur in none of the strings, without end in practice."""
    used = {character for text in strings for character in PRIVATE.findall(text)}
    for code in range(FIRST_PRIVATE, FIRST_PRIVATE + 0xFFFE):
        if chr(code) not in used:
            yield chr(code)


def _meanings(names: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Each private character as it is, and as a template's JSON in ASCII would write it."""
    for token, private in names.items():
        yield private, token
        yield json.dumps(private)[1:-1], json.dumps(token)[1:-1]


def _any_of(tokens: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, tokens)) or "(?!)")
