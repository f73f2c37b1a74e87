"""Lines of a batch file: what is a request, and what is said of what is none."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixserve.batch.line import URLS, BatchLine, LineFault, duplicate_fault, parse_line
from radixserve.batch.record import error_record, fault_record, is_ok, key_of, reply_record
from tests.batch.lines import line, ok, refused

GOOD = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}


def parsed(**changes: Any) -> BatchLine | LineFault:
    return parse_line(json.dumps(GOOD | changes).encode(), 7)


@pytest.mark.parametrize("url", URLS)
def test_a_request_is_read(url: str) -> None:
    assert parsed(url=url, other=1) == BatchLine(7, "a", url, {"prompt": "x"})


@pytest.mark.parametrize(
    ("changes", "code", "param"),
    [
        ({"custom_id": None}, "missing_required_parameter", "custom_id"),
        ({"custom_id": 5}, "invalid_value", "custom_id"),
        ({"custom_id": ""}, "invalid_value", "custom_id"),
        ({"custom_id": "a" * 513}, "invalid_value", "custom_id"),
        ({"method": None}, "missing_required_parameter", "method"),
        ({"method": "GET"}, "invalid_value", "method"),
        ({"url": "/v1/embeddings"}, "invalid_url", "url"),
        ({"url": ["/v1/completions"]}, "invalid_url", "url"),
        ({"body": None}, "missing_required_parameter", "body"),
        ({"body": "x"}, "invalid_type", "body"),
        ({"body": []}, "invalid_type", "body"),
        ({"body": {"stream": True}}, "unsupported_parameter", "body.stream"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], code: str, param: str) -> None:
    fault = parsed(**changes)
    assert isinstance(fault, LineFault)
    assert (fault.number, fault.code, fault.param) == (7, code, param)
    assert param in fault.message


@pytest.mark.parametrize("raw", [b"{bad", b'{"a": NaN}', b"\xff\xfe", b'{"custom_id": "\\ud800"}'])
def test_what_is_no_json_is_a_fault(raw: bytes) -> None:
    fault = parse_line(raw, 1)
    assert isinstance(fault, LineFault)
    assert fault.code in ("invalid_json", "missing_required_parameter")


def test_a_fault_keeps_the_id_of_its_line() -> None:
    fault = parsed(method="PUT")
    assert isinstance(fault, LineFault)
    assert fault.custom_id == "a"


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_no_bytes_make_the_reader_fail(raw: bytes) -> None:
    assert isinstance(parse_line(raw, 1), BatchLine | LineFault)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(GOOD, json_values)))
def test_every_object_is_a_request_or_has_a_fault_that_names_a_field(fields: Any) -> None:
    found = parse_line(json.dumps(GOOD | fields).encode(), 1)
    assert isinstance(found, BatchLine) or found.param is not None


def test_every_record_is_known_by_its_lines_key() -> None:
    found = parsed()
    assert isinstance(found, BatchLine)
    fault = duplicate_fault(found)
    replied, failed = reply_record(found, ok(found)), error_record(found, "connection_error", "x")
    assert (
        key_of(replied) == key_of(failed) == found.key != fault.key == key_of(fault_record(fault))
    )
    assert is_ok(replied)
    assert not is_ok(failed)
    assert not is_ok(reply_record(found, refused(400)))
    assert fault_record(fault)["error"]["line"] == 7


@pytest.mark.parametrize("value", [None, [], {}, {"custom_id": "a"}, json.loads(line("a"))])
def test_what_is_no_record_is_told_apart(value: Any) -> None:
    with pytest.raises(ValueError, match="it is not the result of a batch"):
        key_of(value)
