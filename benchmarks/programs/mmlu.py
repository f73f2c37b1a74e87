"""MMLU with five worked examples a subject: the answer is one token."""

from __future__ import annotations

from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any

import radixserve as rs
from benchmarks.programs.workload import Source, Workload

if TYPE_CHECKING:
    from collections.abc import Sequence

SUBJECTS = ("anatomy", "astronomy", "management", "marketing", "philosophy", "virology")
QUESTIONS = 10
"""Of each subject."""


def _asked(row: dict[str, Any]) -> str:
    listed = "".join(
        f"{letter}. {choice}\n" for letter, choice in zip("ABCD", row["choices"], strict=True)
    )
    return f"{row['question']}\n{listed}Answer:"


@rs.program(name="mmlu", priority="batch")
async def answer(p: rs.Prompt, subject: str, shots: Sequence[str], question: str) -> str:
    """Return the letter, or whatever the model says in its place."""
    p += f"The following are multiple choice questions (with answers) about {subject}.\n\n"
    for shot in shots:
        p += shot
    p += question
    return str(await p.gen("answer", max_tokens=1, temperature=0))


def load(source: Source) -> Workload:
    """Return the questions of all subjects, taken in turn."""
    rows = source.rows("few_shot/mmlu.jsonl.gz")
    queues = []
    for subject in SUBJECTS:
        own = [row for row in rows if row["subject"] == subject]
        shots = tuple(f"{_asked(row)} {row['answer']}\n\n" for row in own if row["split"] == "dev")
        tests = [row for row in own if row["split"] == "test"][: source.count(QUESTIONS)]
        queues.append([(subject, shots, _asked(row)) for row in tests])
    items = [item for item in chain.from_iterable(zip_longest(*queues)) if item is not None]
    return Workload("mmlu", answer, items, "5 shots, 6 subjects in turn, 1 token")
