"""Each field of the two routes: what is accepted, what is refused, and by which name."""

from __future__ import annotations

from typing import Any

import pytest

from radixserve.errors import InvalidRequestError, UnsupportedFeatureError
from radixserve.server.protocol.chat import parse_chat
from radixserve.server.protocol.completions import parse_completion

USER = {"role": "user", "content": "hi"}

BAD_IN_BOTH: list[tuple[dict[str, Any], str, str]] = [
    ({"temperature": -0.1}, "temperature", "invalid_value"),
    ({"temperature": 2.1}, "temperature", "invalid_value"),
    ({"temperature": "1"}, "temperature", "invalid_type"),
    ({"temperature": True}, "temperature", "invalid_type"),
    ({"temperature": 1e308}, "temperature", "invalid_value"),
    ({"top_p": 0}, "top_p", "invalid_value"),
    ({"top_p": 1.01}, "top_p", "invalid_value"),
    ({"top_k": -2}, "top_k", "invalid_value"),
    ({"top_k": 1.5}, "top_k", "invalid_type"),
    ({"top_k": 2**63}, "top_k", "invalid_value"),
    ({"min_p": -0.1}, "min_p", "invalid_value"),
    ({"min_p": 1.1}, "min_p", "invalid_value"),
    ({"presence_penalty": 2.5}, "presence_penalty", "invalid_value"),
    ({"frequency_penalty": -2.5}, "frequency_penalty", "invalid_value"),
    ({"repetition_penalty": 0}, "repetition_penalty", "invalid_value"),
    ({"repetition_penalty": -1}, "repetition_penalty", "invalid_value"),
    ({"seed": "5"}, "seed", "invalid_type"),
    ({"seed": 2**63}, "seed", "invalid_value"),
    ({"seed": 1e20}, "seed", "invalid_type"),
    ({"seed": True}, "seed", "invalid_type"),
    ({"max_tokens": 0}, "max_tokens", "invalid_value"),
    ({"max_tokens": -1}, "max_tokens", "invalid_value"),
    ({"max_tokens": "5"}, "max_tokens", "invalid_type"),
    ({"max_tokens": 5.0}, "max_tokens", "invalid_type"),
    ({"max_tokens": 2**62}, "max_tokens", "invalid_value"),
    ({"min_tokens": -1}, "min_tokens", "invalid_value"),
    ({"stop": ""}, "stop", "invalid_value"),
    ({"stop": ["a", ""]}, "stop[1]", "invalid_value"),
    ({"stop": ["a"] * 17}, "stop", "invalid_value"),
    ({"stop": 5}, "stop", "invalid_type"),
    ({"stop": [5]}, "stop[0]", "invalid_type"),
    ({"stop": "a" * 1025}, "stop", "invalid_value"),
    ({"stop_token_ids": [-1]}, "stop_token_ids[0]", "invalid_value"),
    ({"stop_token_ids": ["1"]}, "stop_token_ids[0]", "invalid_type"),
    ({"logit_bias": []}, "logit_bias", "invalid_type"),
    ({"stream": "true"}, "stream", "invalid_type"),
    ({"stream": 1}, "stream", "invalid_type"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
    ({"stream": True, "stream_options": 5}, "stream_options", "invalid_type"),
    ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x", "unknown_parameter"),
    (
        {"stream": True, "stream_options": {"include_usage": "yes"}},
        "stream_options.include_usage",
        "invalid_type",
    ),
    ({"model": 5}, "model", "invalid_type"),
    ({"ignore_eos": "no"}, "ignore_eos", "invalid_type"),
    ({"cache_salt": ""}, "cache_salt", "invalid_value"),
    ({"cache_salt": "a" * 1025}, "cache_salt", "invalid_value"),
    ({"priority": "high"}, "priority", "invalid_type"),
    ({"n": 0}, "n", "invalid_value"),
    ({"n": -1}, "n", "invalid_value"),
    ({"n": 100000}, "n", "invalid_value"),
    ({"n": True}, "n", "invalid_type"),
    ({"n": 1.0}, "n", "invalid_type"),
    ({"response_format": "json"}, "response_format", "invalid_value"),
    ({"response_format": {"type": "json"}}, "response_format", "invalid_value"),
    ({"response_format": {}}, "response_format", "invalid_value"),
    (
        {"response_format": {"type": "json_object"}, "ignore_eos": True},
        "ignore_eos",
        "invalid_value",
    ),
    ({"n": 129}, "n", "invalid_value"),
    ({"prompt_logprobs": -1}, "prompt_logprobs", "invalid_value"),
    ({"prompt_logprobs": 21}, "prompt_logprobs", "invalid_value"),
    ({"prompt_logprobs": True}, "prompt_logprobs", "invalid_type"),
    ({"prompt_logprob_start": -1}, "prompt_logprob_start", "invalid_value"),
    ({"allowed_token_ids": []}, "allowed_token_ids", "invalid_value"),
    ({"allowed_token_ids": [1] * 4097}, "allowed_token_ids", "invalid_value"),
    ({"allowed_token_ids": ["a"]}, "allowed_token_ids[0]", "invalid_type"),
    ({"bad_words": "a"}, "bad_words", "invalid_type"),
    ({"bad_words": [""]}, "bad_words[0]", "invalid_value"),
    ({"bad_words": ["a"] * 129}, "bad_words", "invalid_value"),
    ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias", "invalid_value"),
    ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "invalid_value"),
    ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens", "invalid_value"),
    ({"return_token_ids": 1}, "return_token_ids", "invalid_type"),
    ({"use_beam_search": 1}, "use_beam_search", "invalid_type"),
    ({"beam_width": 0}, "beam_width", "invalid_value"),
    ({"beam_width": 65}, "beam_width", "invalid_value"),
    ({"n": 3, "beam_width": 2}, "n", "invalid_value"),
    ({"length_penalty": 2.0}, "length_penalty", "invalid_value"),
    ({"early_stopping": True}, "early_stopping", "invalid_value"),
    ({"beam_width": 2, "early_stopping": "soon"}, "early_stopping", "invalid_value"),
    ({"beam_width": 2, "presence_penalty": 1.0}, "presence_penalty", "invalid_value"),
    ({"use_beam_search": True, "stop": "a"}, "stop", "invalid_value"),
    ({"use_beam_search": True, "prompt_logprobs": 0}, "prompt_logprobs", "invalid_value"),
    (
        {"stream": True, "stream_options": {"continuous_usage_stats": 1}},
        "stream_options.continuous_usage_stats",
        "invalid_type",
    ),
    ({"max_new_tokens": 5}, "max_new_tokens", "unknown_parameter"),
]

BAD_COMPLETIONS: list[tuple[Any, str | None, str]] = [
    ([], None, "invalid_type"),
    ("text", None, "invalid_type"),
    (None, None, "invalid_type"),
    ({}, "prompt", "missing_required_parameter"),
    ({"prompt": None}, "prompt", "missing_required_parameter"),
    ({"prompt": []}, "prompt", "invalid_value"),
    ({"prompt": [[]]}, "prompt[0]", "invalid_value"),
    ({"prompt": 5}, "prompt", "invalid_type"),
    ({"prompt": {}}, "prompt", "invalid_type"),
    ({"prompt": ["a", 5]}, "prompt[1]", "invalid_type"),
    ({"prompt": [5, "a"]}, "prompt[1]", "invalid_type"),
    ({"prompt": [5, True]}, "prompt[1]", "invalid_type"),
    ({"prompt": [5, 1.0]}, "prompt[1]", "invalid_type"),
    ({"prompt": [True]}, "prompt[0]", "invalid_type"),
    ({"prompt": [-1]}, "prompt[0]", "invalid_value"),
    ({"prompt": [2**40]}, "prompt[0]", "invalid_value"),
    ({"prompt": [[1], ["a"]]}, "prompt[1][0]", "invalid_type"),
    ({"prompt": [[1], "a"]}, "prompt[1]", "invalid_type"),
    ({"prompt": ["a"] * 2049}, "prompt", "invalid_value"),
    ({"prompt": "a", "logprobs": -1}, "logprobs", "invalid_value"),
    ({"prompt": "a", "logprobs": 21}, "logprobs", "invalid_value"),
    ({"prompt": "a", "logprobs": 2_000_000_000}, "logprobs", "invalid_value"),
    ({"prompt": "a", "logprobs": True}, "logprobs", "invalid_type"),
    ({"prompt": "a", "best_of": 100000}, "best_of", "invalid_value"),
    ({"prompt": "a", "best_of": 0}, "best_of", "invalid_value"),
    ({"prompt": "a", "best_of": 2, "n": 3}, "best_of", "invalid_value"),
    ({"prompt": "a", "best_of": 3, "n": 2, "stream": True}, "best_of", "invalid_value"),
    ({"prompt": "a", "best_of": 2, "beam_width": 2}, "best_of", "invalid_value"),
    ({"prompt": "a", "echo": 1}, "echo", "invalid_type"),
    ({"prompt": "a", "max_tokens": 0}, "max_tokens", "invalid_value"),
    (
        {"prompt": "a", "max_tokens": 0, "echo": True, "min_tokens": 1},
        "min_tokens",
        "invalid_value",
    ),
    (
        {"prompt": "a", "max_tokens": 0, "echo": True, "beam_width": 1},
        "max_tokens",
        "invalid_value",
    ),
    ({"prompt": "a", "suffix": "b"}, "suffix", "unsupported_parameter"),
    ({"prompt": "a", "messages": []}, "messages", "unknown_parameter"),
    ({"prompt": "a", "max_completion_tokens": 5}, "max_completion_tokens", "unknown_parameter"),
]

BAD_CHATS: list[tuple[Any, str | None, str]] = [
    ({}, "messages", "missing_required_parameter"),
    ({"messages": []}, "messages", "invalid_value"),
    ({"messages": "hi"}, "messages", "invalid_type"),
    ({"messages": ["hi"]}, "messages[0]", "invalid_type"),
    ({"messages": [{"content": "hi"}]}, "messages[0].role", "missing_required_parameter"),
    ({"messages": [{"role": "wizard", "content": "a"}]}, "messages[0].role", "invalid_value"),
    ({"messages": [USER, {"role": "user", "content": 5}]}, "messages[1].content", "invalid_type"),
    ({"messages": [{**USER, "colour": 1}]}, "messages[0].colour", "unknown_parameter"),
    ({"messages": [{**USER, "name": 5}]}, "messages[0].name", "invalid_type"),
    (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]},
        "messages[0].content[0].text",
        "invalid_type",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "smell"}]}]},
        "messages[0].content[0].type",
        "invalid_value",
    ),
    ({"messages": [{"role": "user", "content": []}]}, "messages[0].content", "invalid_value"),
    ({"messages": [USER], "max_completion_tokens": 0}, "max_completion_tokens", "invalid_value"),
    (
        {"messages": [USER], "max_tokens": 5, "max_completion_tokens": 6},
        "max_tokens",
        "invalid_value",
    ),
    ({"messages": [USER], "top_logprobs": 21}, "top_logprobs", "invalid_value"),
    ({"messages": [USER], "top_logprobs": 2_000_000_000}, "top_logprobs", "invalid_value"),
    ({"messages": [USER], "top_logprobs": 5}, "top_logprobs", "invalid_value"),
    ({"messages": [USER], "logprobs": 1}, "logprobs", "invalid_type"),
    ({"messages": [USER], "functions": [{"name": "f"}]}, "functions", "unsupported_parameter"),
    (
        {"messages": [USER], "function_call": {"name": "f"}},
        "function_call",
        "unsupported_parameter",
    ),
    ({"messages": [USER], "chat_template_kwargs": []}, "chat_template_kwargs", "invalid_type"),
    (
        {"messages": [USER], "continue_final_message": True},
        "continue_final_message",
        "invalid_value",
    ),
    (
        {
            "messages": [USER, {"role": "assistant", "content": "ok"}],
            "continue_final_message": True,
            "add_generation_prompt": True,
        },
        "continue_final_message",
        "invalid_value",
    ),
]


def assert_refused(error: InvalidRequestError, param: str | None, code: str) -> None:
    assert (error.param, error.code, error.status_hint) == (param, code, 400)
    assert param is None or param in error.message


@pytest.mark.parametrize(("fields", "param", "code"), BAD_IN_BOTH)
def test_both_routes_refuse_the_field_by_name(
    fields: dict[str, Any], param: str, code: str
) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        parse_completion({"prompt": "a", **fields})
    assert_refused(refused.value, param, code)
    with pytest.raises(InvalidRequestError) as refused:
        parse_chat({"messages": [USER], **fields})
    assert_refused(refused.value, param, code)


@pytest.mark.parametrize(("body", "param", "code"), BAD_COMPLETIONS)
def test_a_bad_completion_is_refused_by_name(body: Any, param: str | None, code: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        parse_completion(body)
    assert_refused(refused.value, param, code)


@pytest.mark.parametrize(("body", "param", "code"), BAD_CHATS)
def test_a_bad_chat_is_refused_by_name(body: Any, param: str | None, code: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        parse_chat(body)
    assert_refused(refused.value, param, code)


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 1},
        {"best_of": 1},
        {"logprobs": None},
        {"logprobs": False},
        {"echo": False},
        {"suffix": None},
        {"response_format": {"type": "text"}},
        {"user": "me", "store": True, "metadata": {"a": "b"}, "service_tier": "auto"},
        {"stop": None, "seed": None, "temperature": None, "stream_options": None},
        {"temperature": 0, "top_p": 1, "seed": -(2**63), "top_k": -1},
        {"stream": True, "stream_options": {"include_usage": True}},
    ],
)
def test_what_asks_for_nothing_is_accepted(fields: dict[str, Any]) -> None:
    assert parse_completion({"prompt": "a", **fields}).prompts == ["a"]


def test_chat_accepts_what_asks_for_nothing() -> None:
    fields = {"tools": [], "tool_choice": "none", "top_logprobs": 0, "logprobs": False}
    harmless = {"parallel_tool_calls": True, "reasoning_effort": "low", "verbosity": "low"}
    assert parse_chat({"messages": [USER], **fields, **harmless}).asked_tokens is None


def test_unknown_fields_pass_where_the_server_says_so() -> None:
    assert parse_completion({"prompt": "a", "colour": 1}, ignore_unknown=True).prompts == ["a"]


def test_ignoring_unknown_fields_does_not_ignore_known_ones_that_are_not_built() -> None:
    with pytest.raises(UnsupportedFeatureError):
        parse_completion({"prompt": "a", "suffix": "b"}, ignore_unknown=True)


def test_a_misspelt_field_brings_the_right_one_to_mind() -> None:
    with pytest.raises(InvalidRequestError, match="Did you mean temperature"):
        parse_completion({"prompt": "a", "temprature": 1})


@pytest.mark.parametrize(
    ("prompt", "prompts", "param"),
    [
        ("a", ["a"], "prompt"),
        (["a", "b"], ["a", "b"], "prompt[0]"),
        ([1, 2], [[1, 2]], "prompt"),
        ([[1], [2, 3]], [[1], [2, 3]], "prompt[0]"),
    ],
)
def test_the_four_forms_of_a_prompt(prompt: Any, prompts: list[Any], param: str) -> None:
    parsed = parse_completion({"prompt": prompt})
    assert parsed.prompts == prompts
    assert parsed.prompt_param(0) == param


def test_a_million_wrong_items_make_one_error() -> None:
    with pytest.raises(InvalidRequestError) as refused:
        parse_completion({"prompt": [1] + ["a"] * 1_000_000})
    assert refused.value.param == "prompt[1]"


def test_a_developer_speaks_as_the_system() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    parsed = parse_chat({"messages": [{"role": "developer", "content": parts}, USER]})
    assert parsed.template_messages() == [{"role": "system", "content": parts}, USER]
    assert parsed.text_len == 4


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}])
def test_a_turn_of_tool_calls_needs_no_content(content: dict[str, Any]) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    turn = {"role": "assistant", "tool_calls": [{**call, "index": 0}], **content}
    result = {"role": "tool", "tool_call_id": "c1", "content": "5"}
    messages = parse_chat({"messages": [USER, turn, result]}).template_messages()
    assert messages[1]["tool_calls"] == [call]
    assert messages[2] == result


def test_an_openai_answer_may_be_sent_back_as_it_came() -> None:
    answer: dict[str, Any] = {
        "role": "assistant",
        "content": "ok",
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
        "tool_calls": None,
    }
    assert parse_chat({"messages": [USER, answer]}).template_messages()[1] == {
        "role": "assistant",
        "content": "ok",
    }


def test_continuing_the_final_message_opens_no_new_turn() -> None:
    parsed = parse_chat(
        {
            "messages": [USER, {"role": "assistant", "content": "ok"}],
            "continue_final_message": True,
        }
    )
    assert not parsed.opens_turn
