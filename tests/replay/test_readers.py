from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest

from radixserve.errors import ConfigError
from radixserve.replay.readers.detect import read_trace
from radixserve.replay.readers.pseudo_tokens import pseudo_tokens
from radixserve.types import pack_ids, unpack_ids
from tests.replay.tiny_traces import mooncake_rows, write_rows

if TYPE_CHECKING:
    from pathlib import Path

CODING_ROW = {
    "session": "a",
    "block_size": 64,
    "requests": [
        {"t": 0.0, "in": 200, "out": 9, "stop": "tool_use", "think": 0.0, "runs": [[1, 3]]},
        {"t": 5.0, "in": 300, "out": 9, "think": 4.0, "runs": [[1, 2], [7, 2]]},
    ],
}
AGENT_ROW = {
    "session": "a",
    "requests": [
        {"t": 0.0, "ref": -1, "keep": 0, "add": "user: hello", "out_chars": 8},
        {"t": 2.0, "ref": 0, "keep": 6, "add": "goodbye", "out_chars": 8},
    ],
}
DIALOGUE_ROWS = [
    {"system": "Be kind."},
    {
        "task": 0,
        "messages": [
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]},
            {"role": "tool", "content": "3"},
            {"role": "assistant", "content": "three"},
        ],
    },
]
BATCH_ROWS = [
    {"custom_id": "a", "body": {"messages": [{"role": "user", "content": "hello"}]}},
    {"custom_id": "b", "body": {"prompt": [1, 2, 3], "max_tokens": 7, "user": "them"}},
    {"prompt": "hello"},
]


def text_of(path: bytes) -> str:
    return path.rstrip(b"\0").decode()


def test_mooncake(tmp_path: Path) -> None:
    trace = read_trace([write_rows(tmp_path / "trace.jsonl", mooncake_rows())])

    assert trace.block_size == trace.tokens_per_id == 512
    assert [request.arrival_s for request in trace.requests] == [0.0, 1.0, 2.0, 3.0]
    assert unpack_ids(trace.requests[1].path) == [0, 1, 3, 4]
    # 1,948 tokens are three whole blocks; the fourth id stands for a part of one.
    assert trace.num_full_blocks(trace.requests[1]) == 3
    assert unpack_ids(trace.full_path(trace.requests[1])) == [0, 1, 3]


def test_gzip_is_seen_by_content(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(gzip.compress(json.dumps(mooncake_rows()[0]).encode()))

    assert len(read_trace([path]).requests) == 1


def test_coding_sessions_have_ids_of_their_own(tmp_path: Path) -> None:
    rows = [CODING_ROW, CODING_ROW | {"session": "b"}]

    trace = read_trace([write_rows(tmp_path / "s.jsonl", rows)], span_s=1e6)

    by_session = {name: [r for r in trace.requests if r.session == name] for name in "ab"}
    first, second = by_session["a"]
    assert unpack_ids(second.path) == [1, 2, 7, 8]
    assert (first.stop, second.stop) == ("tool_use", "")
    assert second.arrival_s == pytest.approx(first.arrival_s + 5.0)
    assert (second.turn, second.think_s) == (1, 4.0)
    ids = [{i for r in by_session[name] for i in unpack_ids(r.path)} for name in "ab"]
    assert ids[0].isdisjoint(ids[1])


def test_sessions_are_cut_at_the_end_of_the_span(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "s.jsonl", [CODING_ROW])

    trace = read_trace([path], span_s=1.0)

    assert [request.turn for request in trace.requests] == [0]


def test_azure(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
        "2023-11-16 18:15:46.6805900,374,44\r\n"
        "2023-11-16 18:15:50.5,40,4\r\n"
    )

    trace = read_trace([path])

    assert [request.prompt_len for request in trace.requests] == [374, 40]
    assert [request.output_len for request in trace.requests] == [44, 4]
    assert trace.requests[1].arrival_s == pytest.approx(3.81941)
    assert trace.num_input_blocks == 374 // 16 + 40 // 16
    first, second = (set(unpack_ids(request.path)) for request in trace.requests)
    assert first.isdisjoint(second)


def test_agent_logs_give_whole_prompts(tmp_path: Path) -> None:
    trace = read_trace([write_rows(tmp_path / "a.jsonl", [AGENT_ROW])])

    assert [text_of(request.path) for request in trace.requests] == ["user: hello", "user: goodbye"]
    assert trace.requests[0].output_len == 2


def test_dialogues_have_a_request_for_each_answer(tmp_path: Path) -> None:
    trace = read_trace([write_rows(tmp_path / "d.jsonl", DIALOGUE_ROWS)])

    first, second = trace.requests
    assert text_of(first.path) == "system: Be kind.\n\nuser: hello\n\n"
    assert text_of(second.path).startswith(text_of(first.path) + "assistant: ")
    assert (first.stop, second.stop) == ("tool_use", "end_turn")
    assert second.arrival_s == pytest.approx(first.arrival_s + 2.0)


def test_openai_batches(tmp_path: Path) -> None:
    trace = read_trace([write_rows(tmp_path / "b.jsonl", BATCH_ROWS)])

    chat, completion, bare = trace.requests
    assert text_of(chat.path) == "user: hello\n\n"
    assert unpack_ids(completion.path) == [1, 2, 3]
    assert (completion.output_len, completion.tenant) == (7, "them")
    assert text_of(bare.path) == "hello"


def test_a_folder_of_few_shot_sets_becomes_one_batch(tmp_path: Path) -> None:
    write_few_shot_sets(tmp_path)

    trace = read_trace([tmp_path], seed=1)

    prompts = sorted(text_of(request.path) for request in trace.requests)
    assert len(prompts) == 4
    assert prompts[:2] == [
        f"Count.\n\nQ: {question}\nA: Let's think step by step.\n" for question in "ab"
    ]
    assert prompts[2] == "Question: 1+1?\nAnswer: 2\n\nQuestion: 2+2?\nAnswer:"
    assert prompts[3].endswith("1?\nA. no\nB. yes\nAnswer: B\n\n2?\nA. no\nB. yes\nAnswer:")


def write_few_shot_sets(folder: Path) -> None:
    (folder / "bbh_cot_prompts.json").write_text(json.dumps({"count": "Count."}))
    write_rows(folder / "bbh.jsonl.gz", [{"task": "count", "input": each} for each in "ab"])
    write_rows(
        folder / "gsm8k.jsonl.gz",
        [
            {"split": "test", "question": "2+2?", "answer": "4"},
            {"split": "train", "question": "1+1?", "answer": "2"},
        ],
    )
    choices = {"subject": "maths", "choices": ["no", "yes"], "answer": "B"}
    write_rows(
        folder / "mmlu.jsonl.gz",
        [
            choices | {"split": "dev", "question": "1?"},
            choices | {"split": "test", "question": "2?"},
        ],
    )


def test_several_files_of_text_are_laid_over_one_another(tmp_path: Path) -> None:
    agents = write_rows(tmp_path / "a.jsonl", [AGENT_ROW])
    dialogues = write_rows(tmp_path / "d.jsonl", DIALOGUE_ROWS)

    trace = read_trace([agents, dialogues])

    arrivals = [request.arrival_s for request in trace.requests]
    assert len(arrivals) == 4
    assert arrivals == sorted(arrivals)
    assert trace.name == "a.jsonl + d.jsonl"


def test_what_is_drawn_follows_from_the_seed(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl", [AGENT_ROW])

    assert read_trace([path], seed=3) == read_trace([path], seed=3)
    assert read_trace([path], seed=3) != read_trace([path], seed=4)


@pytest.mark.parametrize(
    ("text", "ids"), [("", []), ("abcd", [0x64636261]), ("abcde", [0x64636261, 0x65])]
)
def test_a_pseudo_token_is_four_bytes(text: str, ids: list[int]) -> None:
    assert pseudo_tokens(text) == pack_ids(ids)


@pytest.mark.parametrize(
    ("good", "bad", "why"),
    [
        (mooncake_rows()[0], '{"timestamp": 0', "not JSON"),
        (mooncake_rows()[0], "[1]", "not a JSON object"),
        (mooncake_rows()[0], mooncake_rows()[0] | {"hash_ids": [-1, 2, 3]}, "hash_ids"),
        (mooncake_rows()[0], mooncake_rows()[0] | {"hash_ids": 7}, "hash_ids"),
        (mooncake_rows()[0], mooncake_rows()[0] | {"input_length": 1e6}, "too few"),
        (mooncake_rows()[0], mooncake_rows()[0] | {"timestamp": "now"}, "timestamp"),
        (CODING_ROW, CODING_ROW | {"block_size": 32}, "block_size"),
        (CODING_ROW, CODING_ROW | {"requests": [{"runs": [[1]], "t": 0}]}, "a run is"),
        (AGENT_ROW, AGENT_ROW | {"requests": [{"ref": 0, "keep": 0, "t": 0}]}, "ref"),
        (DIALOGUE_ROWS[0], {"messages": [{"content": "x"}]}, "role"),
        (BATCH_ROWS[0], {"body": {"prompt": ["x"]}}, "prompt"),
        (BATCH_ROWS[0], {"body": {}}, "messages"),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, good: Any, bad: Any, why: str) -> None:
    lines = [json.dumps(good), bad if isinstance(bad, str) else json.dumps(bad)]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(lines) + "\n")

    with pytest.raises(ConfigError, match=rf"^trace\.jsonl, line 2: .*{why}"):
        read_trace([path])


@pytest.mark.parametrize("line", ["2023-11-16 18:15:46.68,374", "yesterday,374,44", "x,y,z"])
def test_a_malformed_line_of_a_csv_file_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{line}\n")

    with pytest.raises(ConfigError, match=r"^azure\.csv, line 2: "):
        read_trace([path])


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "no known format"),
        (b'{"unheard": "of"}\n', "no known format"),
        (b"\x1f\x8b but not gzip", "cannot read"),
        (b"\xff\xfe", "cannot read"),
        (b"TIMESTAMP,ContextTokens,GeneratedTokens\n", "no requests"),
    ],
)
def test_a_file_that_is_no_trace_is_refused(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "trace"
    path.write_bytes(content)

    with pytest.raises(ConfigError, match=why):
        read_trace([path])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.jsonl"):
        read_trace([tmp_path / "nowhere.jsonl"])


def test_two_hashed_traces_cannot_be_replayed_together(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "trace.jsonl", mooncake_rows())

    with pytest.raises(ConfigError, match="one trace a run"):
        read_trace([path, path])


def test_a_block_holds_whole_ids(tmp_path: Path) -> None:
    trace = read_trace([write_rows(tmp_path / "trace.jsonl", mooncake_rows())])

    assert trace.with_block_size(1024).ids_per_block == 2
    with pytest.raises(ConfigError, match="multiple of the trace's 512"):
        trace.with_block_size(16)
