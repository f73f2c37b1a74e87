"""A folder of few-shot question sets, made into one shuffled batch.

    bbh.jsonl.gz   bbh_cot_prompts.json     100 questions a task, behind the task's worked examples
    gsm8k.jsonl.gz                          1,000 questions, behind 8 worked examples
    mmlu.jsonl.gz                           20 questions a subject, behind the subject's 5 examples

Source: BIG-Bench Hard (Suzgun et al., 2022), GSM8K (Cobbe et al., 2021), MMLU (Hendrycks et al.,
2021), in the formats of their repositories.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from typing import TYPE_CHECKING

from radixserve.errors import ConfigError
from radixserve.replay.readers.pseudo_tokens import pseudo_tokens
from radixserve.replay.readers.row import read_rows
from radixserve.replay.trace import Trace, TraceRequest
from radixserve.types import ID_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from radixserve.replay.readers.row import Row

BBH_PER_TASK = 100
GSM8K_SHOTS, GSM8K_QUESTIONS = 8, 1000
MMLU_SHOTS, MMLU_PER_SUBJECT = 5, 20
OUTPUT_LEN = 100


def read_few_shot(folder: Path, *, seed: int = 0) -> Trace:
    """Return the batch, shuffled.

    Args:
        seed: Shuffles.
    Raises:
        ConfigError: a file is missing or malformed.
    """
    prompts = few_shot_prompts(folder)
    random.Random(seed).shuffle(prompts)
    paths = map(pseudo_tokens, prompts)
    requests = tuple(
        TraceRequest(
            arrival_s=0.0, path=path, prompt_len=len(path) // ID_BYTES, output_len=OUTPUT_LEN
        )
        for path in paths
    )
    return Trace(folder.name, requests)


def few_shot_prompts(folder: Path) -> list[str]:
    """Return the prompts as text, set by set.

    Raises:
        ConfigError: a file is missing or malformed.
    """
    return [*_bbh(folder), *_gsm8k(folder), *_mmlu(folder)]


def _bbh(folder: Path) -> Iterator[str]:
    heads = _read_object(folder / "bbh_cot_prompts.json")
    for task, rows in _grouped(folder / "bbh.jsonl.gz", "task").items():
        if task not in heads:
            raise rows[0].error(f"bbh_cot_prompts.json has no prompt for {task!r}")
        for row in rows[:BBH_PER_TASK]:
            yield f"{heads[task]}\n\nQ: {row.text('input')}\nA: Let's think step by step.\n"


def _gsm8k(folder: Path) -> Iterator[str]:
    splits = _grouped(folder / "gsm8k.jsonl.gz", "split")
    head = "".join(
        f"Question: {row.text('question')}\nAnswer: {row.text('answer')}\n\n"
        for row in splits.get("train", [])[:GSM8K_SHOTS]
    )
    for row in splits.get("test", [])[:GSM8K_QUESTIONS]:
        yield f"{head}Question: {row.text('question')}\nAnswer:"


def _mmlu(folder: Path) -> Iterator[str]:
    for subject, rows in _grouped(folder / "mmlu.jsonl.gz", "subject").items():
        examples = [row for row in rows if row.text("split") == "dev"][:MMLU_SHOTS]
        questions = [row for row in rows if row.text("split") == "test"][:MMLU_PER_SUBJECT]
        head = (
            "The following are multiple choice questions (with answers) about "
            f"{subject.replace('_', ' ')}.\n\n"
        )
        head += "".join(f"{_choices(row)} {row.text('answer')}\n\n" for row in examples)
        for row in questions:
            yield head + _choices(row)


def _choices(row: Row) -> str:
    choices = "\n".join(
        f"{letter}. {choice}" for letter, choice in zip("ABCD", row.items("choices"), strict=False)
    )
    return f"{row.text('question')}\n{choices}\nAnswer:"


def _grouped(path: Path, field: str) -> dict[str, list[Row]]:
    groups: defaultdict[str, list[Row]] = defaultdict(list)
    for row in read_rows(path):
        groups[row.text(field)].append(row)
    return groups


def _read_object(path: Path) -> dict[str, str]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} must hold a JSON object")
    return value
