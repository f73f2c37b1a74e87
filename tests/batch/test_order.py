"""Prefix order: a full sort by the prompts, whatever is held in memory."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve.batch.line import BatchLine
from radixserve.batch.order import FileOrder, PrefixOrder
from radixserve.batch.plan import plan_lines
from radixserve.batch.prompt_key import prompt_key
from radixserve.batch.reader import LineFile
from radixserve.batch.report import BatchReport
from radixserve.batch.writer import ResultFile
from radixserve.errors import BatchError
from tests.batch.lines import few_shot, line, write

if TYPE_CHECKING:
    from pathlib import Path

    from radixserve.batch.order import LineOrder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("order")


def fill(source: LineFile, order: LineOrder) -> list[BatchLine]:
    """Add all lines; return them in the order of the file."""
    lines = []
    for found in source.scan():
        assert isinstance(found.parsed, BatchLine)
        order.add(found.ref, found.parsed)
        lines.append(found.parsed)
    return lines


prompts = st.lists(st.text("ab", max_size=6), max_size=40)


@given(prompts=prompts, chunk_lines=st.integers(1, 9), chunk_bytes=st.integers(1, 200))
@settings(max_examples=60)
def test_the_order_is_that_of_a_full_sort(
    folder: Path, prompts: list[str], chunk_lines: int, chunk_bytes: int
) -> None:
    path = write(folder / "in.jsonl", [line(f"{i}", text) for i, text in enumerate(prompts)])
    with LineFile(path) as source:
        order = PrefixOrder(source, chunk_bytes=chunk_bytes, chunk_lines=chunk_lines)
        lines = fill(source, order)
        assert len(order) == len(prompts)
        expected = sorted(lines, key=lambda each: (prompt_key(each), each.number))
        assert list(order) == expected
        order.close()


@given(chunk_lines=st.integers(2, 50))
@settings(max_examples=10)
def test_what_is_held_does_not_grow_with_the_file(folder: Path, chunk_lines: int) -> None:
    peaks = []
    for num_groups in (5, 40):
        path = write(folder / "in.jsonl", few_shot(num_groups, 10, head_words=20))
        with LineFile(path) as source:
            order = PrefixOrder(source, chunk_lines=chunk_lines)
            lines = fill(source, order)
            longest = max(len(prompt_key(each)) for each in lines)
            assert len(list(order)) == len(lines)
            assert order.num_runs == -(-len(lines) // chunk_lines)
            assert order.peak_keys <= max(chunk_lines, order.num_runs)
            assert order.peak_key_bytes <= chunk_lines * longest
            peaks.append(order.peak_key_bytes)
            order.close()
    assert peaks[1] <= 1.5 * peaks[0] or chunk_lines > 45


def test_a_bound_in_bytes_is_kept_to_within_one_key(folder: Path) -> None:
    path = write(folder / "in.jsonl", few_shot(20, 10))
    with LineFile(path) as source:
        order = PrefixOrder(source, chunk_bytes=5000)
        longest = max(len(prompt_key(each)) for each in fill(source, order))
        assert order.num_runs > 5
        assert order.peak_key_bytes < 5000 + longest
        order.close()


def test_lines_that_begin_alike_are_neighbours(folder: Path) -> None:
    path = write(folder / "in.jsonl", few_shot(9, 7, seed=3))
    with LineFile(path) as source:
        order = PrefixOrder(source, chunk_lines=10)
        fill(source, order)
        groups = [each.custom_id.partition("-")[0] for each in order]
        order.close()
    changes = sum(one != other for one, other in pairwise(groups))
    assert changes == 8


def test_the_order_of_the_file_is_kept_where_it_is_asked_for(folder: Path) -> None:
    path = write(folder / "in.jsonl", few_shot(9, 7, seed=3))
    with LineFile(path) as source:
        order = FileOrder(source)
        assert fill(source, order) == list(order)
        order.close()


def key(**fields: Any) -> bytes:
    url = fields.pop("url", "/v1/chat/completions")
    return prompt_key(BatchLine(1, "a", url, fields))


def chat(*texts: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text} for text in texts]


def test_a_conversation_and_its_continuation_begin_alike() -> None:
    short, long = key(messages=chat("Who?")), key(messages=chat("Who?", "And why?"))
    assert long.startswith(short)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"url": "/v1/responses", "input": "Who?"}, {"messages": chat("Who?")}),
        (
            {"url": "/v1/messages", "system": "Be brief.", "messages": chat("Who?")},
            {"messages": [{"role": "system", "content": "Be brief."}, *chat("Who?")]},
        ),
        (
            {"url": "/v1/responses", "instructions": "Be brief.", "input": chat("Who?")},
            {"url": "/v1/messages", "system": "Be brief.", "messages": chat("Who?")},
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "Who?"}]}]},
            {"messages": chat("Who?")},
        ),
    ],
)
def test_what_renders_alike_has_one_key(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert key(**one) == key(**other)


def test_what_never_shares_is_kept_apart() -> None:
    keys = [
        key(messages=chat("Who?")),
        key(messages=chat("Who?"), cache_salt="s"),
        key(messages=chat("Who?"), tools=[{"type": "function"}]),
        key(url="/v1/completions", prompt="Who?"),
        key(url="/v1/completions", prompt="Who?", model="other"),
    ]
    assert len(set(keys)) == len(keys)


def test_token_ids_sort_as_numbers() -> None:
    prompts = [[1, 2], [1, 2, 3], [1, 200], [1, 1000], [2]]
    keys = [key(url="/v1/completions", prompt=ids) for ids in prompts]
    assert keys == sorted(keys)
    assert keys[1].startswith(keys[0])


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=6,
)
names = st.sampled_from(["prompt", "messages", "input", "system", "instructions", "tools"])


@given(
    url=st.sampled_from(["/v1/completions", "/v1/messages"]),
    fields=st.dictionaries(names, json_values),
)
def test_no_body_makes_the_key_fail(url: str, fields: dict[str, Any]) -> None:
    assert key(url=url, **fields) == key(url=url, **fields)


def test_the_key_of_a_line_is_read_again_from_its_place(folder: Path) -> None:
    texts = few_shot(4, 4)
    random.Random(1).shuffle(texts)
    path = write(folder / "in.jsonl", ["", texts[0], "", *texts[1:]], end="\r\n")
    with LineFile(path) as source:
        found = list(source.scan())
        assert [each.ref.number for each in found][:2] == [2, 4]
        assert [source.read(each.ref) for each in found] == [each.parsed for each in found]


def test_a_file_that_changes_while_it_is_read_is_told_of(folder: Path) -> None:
    path = write(folder / "in.jsonl", few_shot(3, 3))
    with LineFile(path) as source:
        order = PrefixOrder(source)
        fill(source, order)
        with path.open("r+") as file:
            file.write("x" * path.stat().st_size)
        with pytest.raises(BatchError, match=r"in\.jsonl was changed while it was read"):
            list(order)
        order.close()


def test_a_plan_leaves_out_what_is_done(folder: Path) -> None:
    path = write(folder / "in.jsonl", [*few_shot(3, 3), "{bad", line("g0-0")])
    output = folder / "out.jsonl"
    done = []
    for _ in range(2):
        results, report = ResultFile(output), BatchReport()
        with LineFile(path) as source:
            order = PrefixOrder(source)
            plan_lines(source, order, results, report)
            done.append((len(order), report.num_lines, report.num_failed, report.num_known))
            order.close()
        results.close()
    assert done == [(9, 11, 2, 0), (9, 11, 2, 2)]
