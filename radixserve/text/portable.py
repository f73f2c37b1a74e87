"""A tokenizer and its chat templates as one JSON object, so that a client can encode by itself.

    server   sheet = tokenizer_sheet(tokenizer, template)      GET /tokenizer
    client   tokenizer, template = read_sheet(sheet)           the same classes over the same tables

The sheet has samples with their ids. The reader encodes them again: a client whose libraries cut
text in another way finds out before its first call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer as Backend

from radixserve.errors import InvalidRequestError, ModelLoadError
from radixserve.text.chat_template import ChatTemplate
from radixserve.text.tokenizer import Tokenizer
from radixserve.text.tokenizer_files import TokenizerSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

SAMPLE = (
    "  Tabs\tand\r\nlines, 1234567.89 numbers; don't CamelCaseWords \u00e4\u00df\u4f60\u597d "
    "\U0001f642\u200d\U0001f680 <|im_end|> </s> [INST]\n\n"
)
SAMPLE_CHAT = (
    {"role": "user", "content": SAMPLE},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": "And then?"},
)


def tokenizer_sheet(tokenizer: Tokenizer, template: ChatTemplate) -> dict[str, Any]:
    """Return all that encoding needs. Complexity: O(vocabulary), up to a tenth of a second."""
    settings = tokenizer.settings
    return {
        "tokenizer": tokenizer.backend.to_str(),
        "named_tokens": dict(settings.named_tokens),
        "adds_bos": settings.adds_bos,
        "eos_token_ids": sorted(settings.eos_token_ids),
        "chat_templates": dict(template.sources),
        "samples": _samples(tokenizer, template),
    }


def read_sheet(sheet: Mapping[str, Any]) -> tuple[Tokenizer, ChatTemplate]:
    """Return what a sheet was made of.

    Raises:
        ModelLoadError: it cannot be read, or encodes its samples otherwise here than there.
    """
    try:
        settings = TokenizerSettings(
            named_tokens=dict(sheet["named_tokens"]),
            adds_bos=sheet["adds_bos"],
            eos_token_ids=frozenset(sheet["eos_token_ids"]),
        )
        tokenizer = Tokenizer(Backend.from_str(sheet["tokenizer"]), settings)
        template = ChatTemplate(sheet["chat_templates"], tokenizer)
        samples = sheet["samples"]
    except ModelLoadError:
        raise
    except Exception as failed:  # the library raises bare Exception for all faults of its JSON
        raise ModelLoadError(f"the server's tokenizer cannot be read: {failed}") from failed
    if _samples(tokenizer, template) != samples:
        raise ModelLoadError(
            "the server's tokenizer encodes text otherwise here than there: install the same "
            "versions of radixserve, tokenizers and jinja2 on both sides"
        )
    return tokenizer, template


def _samples(tokenizer: Tokenizer, template: ChatTemplate) -> dict[str, list[int] | None]:
    return {"text": tokenizer.encode(SAMPLE), "chat": _chat_ids(template)}


def _chat_ids(template: ChatTemplate) -> list[int] | None:
    """None where the model has no template, or one that refuses such a chat or shows the date."""
    if any("strftime_now" in source for source in template.sources.values()):
        return None
    try:
        return template.encode(SAMPLE_CHAT)
    except InvalidRequestError:
        return None
