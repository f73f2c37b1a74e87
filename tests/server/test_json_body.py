"""Bytes become JSON values, or a 400 that names what is wrong with them."""

from __future__ import annotations

import pytest

from radixserve.errors import InvalidRequestError
from radixserve.server.protocol.json_body import parse_json

HALF = b'"a\\ud800b"'


def test_strict_json_is_parsed() -> None:
    assert parse_json('{"a": [1, "\u00e9\\ud83d\\ude00"]}'.encode()) == {"a": [1, "é😀"]}


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        (b'{"messages":[{"role":"user"},{"content":' + HALF + b"}]}", "messages[1].content"),
        (b'{"prompt":["x",' + HALF + b"]}", "prompt[1]"),
        (b'{"stop":' + HALF + b"}", "stop"),
        (b'{"prompt":"\\udc00"}', "prompt"),
        (b'{"prompt":"\xed\xa0\x80"}', "prompt"),
        (b'{"a":{"b":[1,2]},"temperature":NaN}', "temperature"),
        (b'{"logit_bias":{"5":-Infinity}}', "logit_bias.5"),
        (b'{"temperature":1e400}', "temperature"),
        (b'{"metadata":{' + HALF + b":1}}", "metadata"),
    ],
)
def test_what_strict_json_forbids_is_refused_by_field(raw: bytes, param: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        parse_json(raw)
    assert refused.value.param == param
    assert refused.value.code == "invalid_value"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"not json",
        b'{"a":1,}',
        b"\xef\xbb\xbf{}",
        b'{"a":"\xff"}',
        b"[" * 200_000,
        b"[" * 5000 + b"]" * 5000,
    ],
)
def test_bytes_that_are_not_json_are_refused(raw: bytes) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        parse_json(raw)
    assert refused.value.param is None
    assert refused.value.code == "invalid_json"


def test_the_sentence_speaks_of_surrogates() -> None:
    with pytest.raises(InvalidRequestError, match="surrogate"):
        parse_json(b'{"prompt":"\\ud800"}')
