"""Random calls: bodies that are nearly right, with now and then something that is not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
from hypothesis import strategies as st

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
RESPONSES = "/v1/responses"
GENERATE = "/generate"
SCORE = "/v1/score"
TOKENIZE = "/tokenize"
DETOKENIZE = "/detokenize"
WARM = "/cache/warm"
EXPLAIN = "/cache/explain"
PIN = "/cache/pin"
UNPIN = "/cache/unpin"
FLUSH = "/cache/flush"


@dataclass(frozen=True)
class Call:
    """A path and the bytes to send there."""

    path: str
    raw: bytes

    @property
    def body(self) -> dict[str, Any]:
        """The body, if it is an object."""
        try:
            body = orjson.loads(self.raw)
        except orjson.JSONDecodeError:
            return {}
        return body if isinstance(body, dict) else {}


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([-1, 0, 1, 2, 2**31 - 1, 2**31, 1e-30, 1e30]),
    st.text(max_size=8),
    st.sampled_from(["", "auto", "<|im_end|>", "\x00", "\N{PARROT}", "a" * 2000]),
)
JUNK = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=5,
)
TEXT = st.sampled_from(["a", "the parrot", "Once upon a time", "{", "\N{PARROT}", "<|im_start|>x"])
TOKEN = st.integers(3, 319)
LONG = list(range(3, 43))
"""Asked for again and again, so that there is something to find in the cache."""
IDS = st.lists(TOKEN, min_size=1, max_size=40) | st.just(LONG)
PROMPT = TEXT | st.lists(TEXT, min_size=1, max_size=3) | IDS | st.lists(IDS, min_size=1, max_size=2)
COUNT_OF_TOKENS = st.integers(1, 12)
SCHEMA = st.sampled_from(
    [
        {"type": "integer", "maximum": 99},
        {"enum": ["a", "b", 3, None]},
        {"type": "string", "maxLength": 3},
        {"type": "string", "pattern": "^[ab]{1,3}$"},
        {"type": "string", "pattern": "(?=a)("},
        {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]},
        {"type": "array", "items": {"const": 1}, "maxItems": 2},
        {"$ref": "#/nothing"},
        {"type": "number", "multipleOf": 0.1},
        {"allOf": [{"type": "string"}, {"type": "integer"}]},
        {"enum": []},
        True,
        False,
        {},
        {"type": "x"},
        {"not": {}},
        {"type": "string", "format": "date"},
        {"minProperties": 3, "type": "object"},
    ]
)
REGEX = st.sampled_from(["[ab]+", "(a|b){2}", "", "(", "\\d{1,3}", "a{1000000}", "(?!x)y", "^$"])
FORMAT = SCHEMA.map(
    lambda schema: {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
) | st.sampled_from([{"type": "json_object"}, {"type": "text"}, {"type": "x"}, {}])
TOOL = st.sampled_from(["add", "now"]).flatmap(
    lambda name: SCHEMA.map(
        lambda schema: {"type": "function", "function": {"name": name, "parameters": schema}}
    )
)
HINTS = st.sampled_from(
    [
        {"cache": {"ttl_s": 5}},
        {"cache": {"keep": "none"}},
        {"cache": {"keep": "prefix", "prefix_len": 3}},
        {"event": "end"},
        {"event": {"pause": {"tool": "x", "expect_s": 0.1}}},
    ]
)

GENERATION: dict[str, SearchStrategy[Any]] = {
    "model": st.sampled_from(["tiny"] * 9 + ["other"]),
    "stream": st.booleans(),
    "stream_options": st.sampled_from([{"include_usage": True}, {"continuous_usage_stats": True}]),
    "temperature": st.sampled_from([0, 0.0, 1e-30, 0.7, 2]),
    "top_p": st.sampled_from([0.1, 1, 1e-9]),
    "top_k": st.sampled_from([-1, 0, 1, 5, 10**6]),
    "min_p": st.sampled_from([0, 0.5, 1]),
    "seed": st.integers(-(2**63), 2**63 - 1),
    "presence_penalty": st.sampled_from([-2, 2, 0]),
    "frequency_penalty": st.sampled_from([-2, 2, 0]),
    "repetition_penalty": st.sampled_from([0.01, 1.3, 100]),
    "logit_bias": st.dictionaries(TOKEN.map(str), st.sampled_from([-100, 100, 0.5]), max_size=3),
    "allowed_token_ids": st.lists(st.integers(0, 400), min_size=1, max_size=3),
    "bad_words": st.lists(TEXT, max_size=2),
    "n": st.integers(1, 4),
    "prompt_logprobs": st.integers(0, 3),
    "prompt_logprob_start": st.integers(0, 50),
    "truncate_prompt_tokens": st.sampled_from([-1, 1, 5]),
    "return_token_ids": st.booleans(),
    "return_tokens_as_token_ids": st.booleans(),
    "use_beam_search": st.booleans(),
    "beam_width": st.integers(1, 4),
    "length_penalty": st.sampled_from([0, 1, -2.5]),
    "early_stopping": st.sampled_from([True, False, "never"]),
    "min_tokens": st.integers(0, 8),
    "stop": st.sampled_from(["e", ["t", " "], ["\N{PARROT}"], [""]]),
    "stop_token_ids": st.lists(TOKEN, max_size=3),
    "ignore_eos": st.booleans(),
    "include_stop_str_in_output": st.booleans(),
    "skip_special_tokens": st.booleans(),
    "priority": st.integers(-3, 3),
    "cache_salt": st.sampled_from(["x", "y"]),
    "radix": HINTS,
    "user": st.sampled_from(["me", "you"]),
    "response_format": FORMAT,
    "guided_json": SCHEMA,
    "guided_regex": REGEX,
    "guided_choice": st.lists(TEXT, max_size=3),
    "guided_grammar": st.sampled_from(['start: "a" | "b"', "start: x", "root ::= [a-c]+", "%"]),
    "structured_outputs": REGEX.map(lambda regex: {"regex": regex}),
}
CONTENT = TEXT | TEXT | st.just([{"type": "text", "text": "the"}])
TURN = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "user", "assistant", "system", "tool"]), "content": CONTENT}
)
CALLED = {
    "role": "assistant",
    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}],
}
TURNS = st.lists(TURN | st.just(CALLED), min_size=1, max_size=4)
ANTHROPIC_TURNS = st.lists(
    st.sampled_from(
        [
            {"role": "user", "content": "the parrot"},
            {"role": "user", "content": [{"type": "text", "text": "a"}]},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "x " * 20, "cache_control": {"type": "ephemeral"}}
                ],
            },
            {"role": "assistant", "content": "the tree"},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "x", "name": "add", "input": {}}],
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "x", "content": "5"}],
            },
        ]
    ),
    min_size=1,
    max_size=3,
)
ANTHROPIC_TOOL = SCHEMA.map(lambda schema: {"name": "add", "input_schema": schema})

REQUIRED: dict[str, dict[str, SearchStrategy[Any]]] = {
    COMPLETIONS: {"prompt": PROMPT, "max_tokens": COUNT_OF_TOKENS},
    CHAT: {"messages": TURNS, "max_tokens": COUNT_OF_TOKENS},
    MESSAGES: {"messages": ANTHROPIC_TURNS, "max_tokens": COUNT_OF_TOKENS},
    COUNT: {"messages": ANTHROPIC_TURNS},
    RESPONSES: {"input": TEXT | TURNS, "max_output_tokens": COUNT_OF_TOKENS},
    GENERATE: {
        "text": TEXT | st.lists(TEXT, min_size=1, max_size=2),
        "sampling_params": st.fixed_dictionaries(
            {"max_new_tokens": COUNT_OF_TOKENS},
            optional={
                name: GENERATION[name]
                for name in ("temperature", "n", "stop", "seed", "regex", "ignore_eos", "top_k")
                if name in GENERATION
            },
        ),
    },
    SCORE: {"prompt": TEXT | IDS, "options": st.lists(TEXT | IDS, min_size=1, max_size=4)},
    TOKENIZE: {"prompt": TEXT},
    DETOKENIZE: {"tokens": st.lists(st.integers(0, 330), max_size=9)},
    WARM: {"prompt": TEXT | IDS},
    EXPLAIN: {"prompt": TEXT | IDS},
    PIN: {"prompt": TEXT | st.just(LONG), "ttl_s": st.sampled_from([0.01, 5, 600])},
    UNPIN: {"name": st.sampled_from(["pin-1", "x"])},
    FLUSH: {},
}
OPTIONAL: dict[str, dict[str, SearchStrategy[Any]]] = {
    COMPLETIONS: GENERATION
    | {
        "max_tokens": st.sampled_from([0, 1, 9, 500]),
        "echo": st.booleans(),
        "logprobs": st.integers(0, 5),
        "best_of": st.integers(1, 5),
        "add_special_tokens": st.booleans(),
        "suffix": st.sampled_from(["", "x"]),
    },
    CHAT: GENERATION
    | {
        "logprobs": st.booleans(),
        "top_logprobs": st.integers(0, 3),
        "max_completion_tokens": COUNT_OF_TOKENS,
        "add_generation_prompt": st.booleans(),
        "continue_final_message": st.booleans(),
        "chat_template_kwargs": st.just({"x": 1}),
        "tools": st.lists(TOOL, max_size=2),
        "tool_choice": st.sampled_from(
            ["none", "auto", "required", {"type": "function", "function": {"name": "add"}}]
        ),
        "parallel_tool_calls": st.booleans(),
        "reasoning_effort": st.just("low"),
    },
    MESSAGES: {
        "system": TEXT,
        "stream": st.booleans(),
        "temperature": st.sampled_from([0, 0.5, 1, 2]),
        "stop_sequences": st.lists(TEXT, max_size=2),
        "tools": st.lists(ANTHROPIC_TOOL, max_size=2),
        "tool_choice": st.sampled_from(
            [{"type": "auto"}, {"type": "any"}, {"type": "tool", "name": "add"}, {"type": "none"}]
        ),
        "thinking": st.sampled_from([{"type": "disabled"}, {"type": "enabled"}]),
        "metadata": st.just({"user_id": "me"}),
        "top_k": st.integers(0, 5),
    },
    COUNT: {"system": TEXT, "tools": st.lists(ANTHROPIC_TOOL, max_size=2)},
    RESPONSES: {
        "stream": st.booleans(),
        "instructions": TEXT,
        "temperature": st.sampled_from([0, 1]),
        "store": st.booleans(),
        "text": SCHEMA.map(
            lambda schema: {"format": {"type": "json_schema", "name": "x", "schema": schema}}
        ),
        "tools": st.lists(TOOL, max_size=1),
    },
    GENERATE: {
        "stream": st.booleans(),
        "return_logprob": st.booleans(),
        "logprob_start_len": st.sampled_from([-1, 0, 3]),
        "top_logprobs_num": st.integers(0, 3),
        "input_ids": IDS,
        "rid": st.sampled_from(["one", "two"]),
    },
    SCORE: {
        "normalization": st.sampled_from(["sum", "mean", "bytes", "x"]),
        "cache_salt": st.just("x"),
        "add_special_tokens": st.booleans(),
    },
    TOKENIZE: {"messages": TURNS, "return_token_strs": st.booleans()},
    DETOKENIZE: {"skip_special_tokens": st.booleans()},
    WARM: {"cache_salt": st.just("x")},
    EXPLAIN: {"cache_salt": st.just("x"), "max_tokens": COUNT_OF_TOKENS},
    PIN: {"name": st.sampled_from(["x", "y"]), "priority": st.integers(-2, 2)},
    UNPIN: {"cache_salt": st.just("x")},
    FLUSH: {"cache_salt": st.just("x")},
}
GENERATING = frozenset({COMPLETIONS, CHAT, MESSAGES, RESPONSES, GENERATE})


@st.composite
def calls(draw: st.DrawFn) -> Call:
    """Draw a call of any route that takes a body; most of its fields make sense."""
    path = draw(st.sampled_from([*REQUIRED, COMPLETIONS, COMPLETIONS, CHAT, CHAT, CHAT, MESSAGES]))
    if draw(st.integers(0, 49)) == 37:
        return Call(path, draw(st.binary(max_size=20) | JUNK.map(orjson_dumps)))
    names = draw(st.lists(st.sampled_from(list(OPTIONAL[path])), max_size=6, unique=True))
    body = {name: draw(values) for name, values in REQUIRED[path].items()}
    for name in names:
        body[name] = draw(OPTIONAL[path][name])
    fault = draw(st.integers(0, 19))  # the numbers in the middle: small ones come too often
    if fault == 11 and body:
        del body[draw(st.sampled_from(sorted(body)))]
    elif fault == 12 and body:
        body[draw(st.sampled_from(sorted(body)))] = draw(JUNK)
    elif fault == 13:
        body[draw(st.text(max_size=9))] = draw(JUNK)
    return Call(path, orjson_dumps(body))


def orjson_dumps(value: Any) -> bytes:
    """Return JSON, with half surrogate pairs as JSON allows to write them."""
    try:
        return orjson.dumps(value)
    except (TypeError, orjson.JSONEncodeError):
        import json  # takes what orjson does not: surrogates, integers of any size

        return json.dumps(value).encode()
