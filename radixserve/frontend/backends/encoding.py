"""A transcript as token ids: what the model wrote keeps the very tokens that it sampled.

    plain   [ text run ][ generated ][ text run ]    each run is tokenized as one string, so it does
                                                     not matter in how many pieces it was written
    chat    the template lays the turns out with a private character in the place of each output;
            the text between two of these is tokenized, and the output's own ids go in between

Nothing is ever tokenized across the edge of an output: no token of it can change afterwards, and
the KV that belongs to it stays good.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from radixserve.frontend.pieces import Generated, Text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from radixserve.frontend.pieces import Part, Transcript, Turn
    from radixserve.text.chat_template import ChatTemplate
    from radixserve.text.tokenizer import Tokenizer
    from radixserve.types import TokenId

RUNS_REMEMBERED = 1024
FIRST_STAND_IN = 0x10F000
"""Private characters that stand for outputs while a template runs."""
_STAND_INS = re.compile("[\U0010f000-\U0010ffff]")


class TranscriptEncoder:
    """Encodes transcripts for one model.

    Args:
        tokenizer: The model's.
        template: The model's.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        self._tokenizer = tokenizer
        self._template = template
        bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_ids
        self._start = [bos] if bos is not None else sorted(eos)[:1]
        self._run = lru_cache(maxsize=RUNS_REMEMBERED)(self._encode_run)

    def encode(self, transcript: Transcript) -> list[TokenId]:
        """Return the ids of a transcript; an open turn of a chat stays open.

        An empty one is what a text begins after: the model's first token, or one that ends texts.

        Raises:
            InvalidRequestError: the model has no chat template, or it refuses these turns.
        Complexity: O(text); runs that have been seen before cost a look-up.
        """
        if transcript.is_chat:
            return self._encode_chat(transcript.turns)
        return self._encode_plain(transcript.parts) or self._start

    def closing(self, transcript: Transcript) -> list[TokenId]:
        """Return the ids that would end the open turn; none for a plain prompt."""
        if transcript.open_turn is None:
            return []
        whole = self._encode_chat(transcript.closed().turns)
        return whole[len(self.encode(transcript)) :]

    def options(
        self, transcript: Transcript, texts: Sequence[str], *, closes_turn: bool
    ) -> list[tuple[TokenId, ...]]:
        """Return the ids of some continuations, each with what ends the turn after it if asked.

        A continuation's ids are those that follow the prompt's in the whole text's, if they do.
        Where the last token of the prompt would take in a part of it, it is tokenized by itself.
        """
        prompt = self.encode(transcript)
        closing = tuple(self.closing(transcript)) if closes_turn else ()
        return [(*self._option(prompt, transcript, text), *closing) for text in texts]

    def _option(
        self, prompt: list[TokenId], transcript: Transcript, text: str
    ) -> Sequence[TokenId]:
        whole = self.encode(transcript.plus(Text(text)))
        if len(whole) > len(prompt) and whole[: len(prompt)] == prompt:
            return whole[len(prompt) :]
        return self._tokenizer.encode(text, add_special_tokens=False)

    def text_of(self, ids: Sequence[TokenId]) -> str:
        """Return the text of some output ids."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=True)

    def output(self, text: str, ids: Sequence[TokenId]) -> list[Part]:
        """Return an output as parts: the longest run of its ids that spells the text's beginning.

        A stop string may cut an output within a token; what is left of that token is text.
        """
        kept = list(ids)
        while kept and not text.startswith(self.text_of(kept)):
            kept.pop()
        spelled = self.text_of(kept)
        parts: list[Part] = [Generated(spelled, tuple(kept))]
        if len(text) > len(spelled):
            parts.append(Text(text[len(spelled) :]))
        return parts

    def _encode_plain(self, parts: Sequence[Part]) -> list[TokenId]:
        ids: list[TokenId] = []
        run = ""
        is_first = True
        for part in parts:
            if isinstance(part, Generated) and part.token_ids:
                ids += self._run(run, is_first) if run or is_first else ()
                ids += part.token_ids
                run, is_first = "", False
            else:
                run += part.text
        return [*ids, *self._run(run, is_first)] if run or is_first else ids

    def _encode_run(self, text: str, is_first: bool) -> tuple[TokenId, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=is_first))

    def _encode_chat(self, turns: Sequence[Turn]) -> list[TokenId]:
        spans: list[tuple[TokenId, ...]] = []
        messages = [_message(turn, spans) for turn in turns]
        is_open = turns[-1].is_open
        is_begun = is_open and bool(turns[-1].parts)
        chunks = self._template.encode_around(
            messages[:-1] if is_open and not is_begun else messages,
            _STAND_INS,
            add_generation_prompt=is_open and not is_begun,
            continue_final_message=is_begun,
        )
        ids = list(chunks[0])
        for span, chunk in zip(spans, chunks[1:], strict=True):
            ids += span
            ids += chunk
        return ids


def _message(turn: Turn, spans: list[tuple[TokenId, ...]]) -> dict[str, Any]:
    """Return a turn as the template takes it; the ids that stand-ins stand for go to `spans`."""
    content = "".join(_shown(turn.parts, spans))
    message: dict[str, Any] = {"role": turn.role, "content": content}
    if turn.tool_call_id:
        message["tool_call_id"] = turn.tool_call_id
    return message


def _shown(parts: Sequence[Part], spans: list[tuple[TokenId, ...]]) -> Iterator[str]:
    for part in parts:
        if isinstance(part, Generated) and part.token_ids:
            yield chr(FIRST_STAND_IN + len(spans))
            spans.append(part.token_ids)
        else:
            yield _STAND_INS.sub("\ufffd", part.text)
