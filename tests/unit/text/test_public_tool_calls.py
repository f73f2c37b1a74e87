"""Calls of a public benchmark, written in each style and read back piece by piece."""

from __future__ import annotations

import gzip
import json
import random
from typing import TYPE_CHECKING, Any

import pytest

from radixserve.text.tool_calls import find_parser
from tests.replay.public_data import public_file
from tests.unit.text.answer_events import pieces_of, read

if TYPE_CHECKING:
    from collections.abc import Iterator

    from radixserve.text.tool_calls import ToolCallStyle

SEED = 7
SAMPLE = 200


def rows() -> list[list[tuple[str, dict[str, Any]]]]:
    """Return the calls of each row, with the first of the values that are right."""
    path = public_file("constrained/bfcl_single_turn.jsonl.gz")
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        answers = [json.loads(line).get("answer") for line in lines]
    found = [[*calls_of(answer)] for answer in answers if answer]
    return random.Random(SEED).sample(found, SAMPLE)


def calls_of(answer: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    for call in answer:
        for name, arguments in call.items():
            yield name, {key: values[0] for key, values in arguments.items()}


def written(style: ToolCallStyle, calls: list[tuple[str, str]]) -> str:
    body = style.between.join(
        style.before_name + name + style.before_arguments + arguments + style.after
        for name, arguments in calls
    )
    return style.first + body + style.last


@pytest.mark.parametrize("name", ["hermes", "llama3", "mistral", "mistral-args"])
@pytest.mark.parametrize("indent", [None, 2])
def test_calls_come_back_as_they_were_written(name: str, indent: int | None) -> None:
    style = find_parser(name)
    dice = random.Random(SEED)
    for calls in rows():
        texts = [
            (function, json.dumps(arguments, indent=indent, ensure_ascii=False))
            for function, arguments in calls
        ]
        said = written(style, texts)
        cuts = [dice.randrange(len(said)) for _ in range(len(said) // 4)]
        events = read(style.parser([function for function, _ in texts]), pieces_of(said, cuts))
        names = [event[3] for event in events[::2]]
        assert list(zip(names, [event[2] for event in events[1::2]], strict=True)) == texts
