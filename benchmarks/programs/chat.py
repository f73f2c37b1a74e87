"""Chats of four turns behind one system prompt, with short or long answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import radixserve as rs
from benchmarks.programs.workload import Source, Workload

if TYPE_CHECKING:
    from collections.abc import Sequence

CHATS = 12
RULES = (
    "You are a patient assistant. Answer what is asked, say so when you do not know, and keep to "
    "the language of the question."
)


@rs.program(name="chat")
async def talk(p: rs.Prompt, lines: Sequence[str], max_tokens: int) -> str:
    """Return the last answer."""
    p.system(RULES)
    answer = ""
    for line in lines:
        p.user(line)
        answer = str(await p.gen("answer", max_tokens=max_tokens, temperature=0))
    return answer


def _load(source: Source, name: str, max_tokens: int, about: str) -> Workload:
    rows = source.rows("programs/mt_bench.jsonl.gz")
    pairs = [rows[at]["turns"] + rows[at + 1]["turns"] for at in range(0, len(rows) - 1, 2)]
    items = [(lines, max_tokens) for lines in pairs[: source.count(CHATS)]]
    return Workload(name, talk, items, about)


def load_short(source: Source) -> Workload:
    """Return chats with answers of 8 tokens."""
    return _load(source, "chat-short", 8, "4 turns, 8 tokens an answer")


def load_long(source: Source) -> Workload:
    """Return chats with answers of 96 tokens."""
    return _load(source, "chat-long", 96, "4 turns, 96 tokens an answer")
