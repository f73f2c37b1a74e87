"""Log-probabilities in the three shapes that clients know.

    completions  {"tokens": [..], "token_logprobs": [..], "top_logprobs": [..], "text_offset": [..]}
    chat         {"content": [{"token", "logprob", "bytes", "top_logprobs"}, ..], "refusal": null}
    prompt       [null, {"<token id>": {"logprob", "rank", "decoded_token"}}, ..]

The first token of a prompt follows nothing: it is told of as null. A token that ends inside a
character has no text of its own, and is written by its bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from radixserve.text.tokenizer import Tokenizer
    from radixserve.types import TokenId, TokenLogprob

LEAST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON cannot say."""


class TokenNames:
    """How tokens are written in an answer.

    Args:
        tokenizer: Of the served model.
        as_ids: Write ``token_id:<id>`` in place of every token's text.
    """

    def __init__(self, tokenizer: Tokenizer, *, as_ids: bool = False) -> None:
        self._bytes = tokenizer.token_bytes
        self._as_ids = as_ids

    def bytes_of(self, token_id: TokenId) -> list[int]:
        """Return the token's UTF-8 bytes, which may begin or end inside a character."""
        return list(self._bytes.of(token_id))

    def in_completions(self, token_id: TokenId) -> str:
        """Return the token as completions write it; half a character is ``bytes:\\\\xf0``."""
        return self._name(token_id, escape="bytes:")

    def in_chat(self, token_id: TokenId) -> str:
        """Return the token as chat completions write it; half a character is ``\\\\xf0``."""
        return self._name(token_id, escape="")

    def _name(self, token_id: TokenId, *, escape: str) -> str:
        raw = self._bytes.of(token_id)
        if self._as_ids or not raw:
            return f"token_id:{token_id}"
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return escape + "".join(f"\\x{byte:02x}" for byte in raw)


def completion_logprobs(
    entries: Sequence[TokenLogprob | TokenId],
    offsets: Sequence[int],
    num_top: int,
    names: TokenNames,
) -> dict[str, Any]:
    """Return OpenAI's object for a run of tokens of a completion.

    Args:
        entries: One a token; the bare id of a token whose log-probability is not known.
        offsets: Where each token's text begins in the choice's text, in characters.
        num_top: Likeliest tokens told at each place; the token itself is told besides.
    """
    return {
        "tokens": [names.in_completions(_id_of(entry)) for entry in entries],
        "token_logprobs": [
            None if isinstance(entry, int) else _finite(entry.logprob) for entry in entries
        ],
        "top_logprobs": [
            None if isinstance(entry, int) else _tops_by_name(entry, num_top, names)
            for entry in entries
        ],
        "text_offset": list(offsets),
    }


def chat_logprobs(
    entries: Iterable[TokenLogprob], num_top: int, names: TokenNames
) -> dict[str, Any]:
    """Return OpenAI's object for a run of tokens of a message.

    Args:
        num_top: Likeliest tokens told at each place, with or without the token itself.
    """
    content = [
        {
            **_chat_token(entry.token_id, entry.logprob, names),
            "top_logprobs": [
                _chat_token(token_id, logprob, names) for token_id, logprob in entry.top[:num_top]
            ],
        }
        for entry in entries
    ]
    return {"content": content, "refusal": None}


def prompt_logprobs(
    entries: Iterable[TokenLogprob | None], num_top: int, names: TokenNames
) -> list[dict[str, dict[str, Any]] | None]:
    """Return vLLM's list for a prompt's tokens: the likeliest ones and the token itself."""
    return [None if entry is None else _tops_by_id(entry, num_top, names) for entry in entries]


def _id_of(entry: TokenLogprob | TokenId) -> TokenId:
    return entry if isinstance(entry, int) else entry.token_id


def _finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)


def _tops_by_name(entry: TokenLogprob, num_top: int, names: TokenNames) -> dict[str, float]:
    """Of two tokens with one name, the likelier stays; the token itself is told in any case."""
    tops: dict[str, float] = {}
    for token_id, logprob in (*entry.top[:num_top], (entry.token_id, entry.logprob)):
        tops.setdefault(names.in_completions(token_id), _finite(logprob))
    return tops


def _chat_token(token_id: TokenId, logprob: float, names: TokenNames) -> dict[str, Any]:
    return {
        "token": names.in_chat(token_id),
        "logprob": _finite(logprob),
        "bytes": names.bytes_of(token_id),
    }


def _tops_by_id(entry: TokenLogprob, num_top: int, names: TokenNames) -> dict[str, dict[str, Any]]:
    ranked = [(token, logprob, place + 1) for place, (token, logprob) in enumerate(entry.top)]
    told = [*ranked[:num_top], (entry.token_id, entry.logprob, entry.rank)]
    return {
        str(token): {
            "logprob": _finite(logprob),
            "rank": rank,
            "decoded_token": names.in_completions(token),
        }
        for token, logprob, rank in told
    }
