"""The output file: whole lines, found again after any crash."""

from __future__ import annotations

import json
import resource
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve.batch.line import BatchLine, LineFault
from radixserve.batch.reader import LineFile
from radixserve.batch.record import error_record, fault_record, reply_record
from radixserve.batch.reorder import put_in_order
from radixserve.batch.writer import ResultFile, SplitResults, tokens_in
from radixserve.errors import BatchError, ConfigError
from tests.batch.lines import few_shot, ids, line, ok, records, write

if TYPE_CHECKING:
    from pathlib import Path

LINES = [BatchLine(number, f"id-{number}", "/v1/completions", {}) for number in range(1, 6)]
FAULT = LineFault(9, "invalid_json", "no")


def good(line: BatchLine) -> dict[str, object]:
    return reply_record(line, ok(line))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A finished output file."""
    results = ResultFile(tmp_path_factory.mktemp("out") / "out.jsonl")
    for each in LINES:
        results.append(good(each))
    results.append(fault_record(FAULT))
    results.close()
    return results.path.read_bytes()


@given(share=st.floats(0, 1))
@settings(max_examples=60)
def test_wherever_a_file_was_cut_the_rest_can_be_added(
    tmp_path_factory: pytest.TempPathFactory, whole: bytes, share: float
) -> None:
    path = tmp_path_factory.mktemp("cut") / "out.jsonl"
    cut = whole[: int(share * len(whole))]
    path.write_bytes(cut)
    results = ResultFile(path)
    known = cut.count(b"\n")
    assert results.num_ok + results.num_failed == known
    assert path.read_bytes() == whole[: cut.rfind(b"\n") + 1]
    for each in LINES:
        if results.find(each.key) is None:
            results.append(good(each))
    if results.find(FAULT.key) is None:
        results.append(fault_record(FAULT))
    results.close()
    assert sorted(ids(path)) == sorted([*(each.custom_id for each in LINES), "None"])


def test_a_record_that_is_known_is_not_written_twice(tmp_path: Path) -> None:
    results = ResultFile(tmp_path / "out.jsonl")
    results.append(good(LINES[0]))
    results.append(error_record(LINES[0], "late", "another worker was faster"))
    results.close()
    assert (results.num_ok, results.num_failed, len(records(results.path))) == (1, 0, 1)


def test_failures_can_be_dropped_to_be_run_again(tmp_path: Path) -> None:
    results = ResultFile(tmp_path / "out.jsonl")
    results.append(good(LINES[0]))
    results.append(error_record(LINES[1], "connection_error", "no"))
    results.append(good(LINES[2]))
    results.close()
    again = ResultFile(results.path, redo_failed=True)
    assert again.find(LINES[1].key) is None
    assert (again.num_ok, again.num_failed) == (2, 0)
    again.append(good(LINES[1]))
    again.close()
    assert ids(results.path) == ["id-1", "id-3", "id-2"]


def test_what_is_no_result_is_never_overwritten(tmp_path: Path) -> None:
    path = write(tmp_path / "notes.jsonl", [json.dumps({"a": 1})])
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=r"notes\.jsonl, line 1, is no result of a batch"):
        ResultFile(path)
    assert path.read_bytes() == before


def test_two_runs_cannot_write_one_file(tmp_path: Path) -> None:
    results = ResultFile(tmp_path / "out.jsonl")
    with pytest.raises(ConfigError, match="being written by another run"):
        ResultFile(results.path)
    results.close()
    ResultFile(results.path).close()


def test_a_file_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot write .*absent"):
        ResultFile(tmp_path / "absent" / "out.jsonl")


def test_a_full_disk_leaves_no_half_line(tmp_path: Path) -> None:
    results = ResultFile(tmp_path / "out.jsonl")
    results.append(good(LINES[0]))
    size = results.path.stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, hard))
    try:
        with pytest.raises(BatchError, match=r"cannot write .*out\.jsonl: File too large"):
            results.append(good(LINES[1]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    results.close()
    assert ids(results.path) == ["id-1"]


def test_answers_and_failures_can_go_to_files_of_their_own(tmp_path: Path) -> None:
    results = SplitResults(ResultFile(tmp_path / "ok"), ResultFile(tmp_path / "failed"))
    results.append(good(LINES[0]))
    results.append(fault_record(FAULT))
    assert results.find(LINES[0].key) is not None
    assert results.find(FAULT.key) is not None
    assert results.find(LINES[1].key) is None
    results.close()
    assert (ids(tmp_path / "ok"), ids(tmp_path / "failed")) == (["id-1"], ["None"])
    assert tokens_in(tmp_path / "ok").prompt == 10
    assert tokens_in(tmp_path / "none").prompt == 0


def test_results_are_put_in_the_order_of_the_input(tmp_path: Path) -> None:
    texts = [*few_shot(4, 5, seed=2), "{bad", line("g0-0", "again")]
    path = write(tmp_path / "in.jsonl", texts)
    results = ResultFile(tmp_path / "out.jsonl")
    with LineFile(path) as source:
        found = [each.parsed for each in source.scan()]
        for each in reversed(found):
            results.append(good(each) if isinstance(each, BatchLine) else fault_record(each))
        put_in_order(source, results)
    results.close()
    assert ids(results.path) == [str(each.custom_id) for each in found]
    assert not list(tmp_path.glob(".*"))
    ResultFile(results.path).close()
