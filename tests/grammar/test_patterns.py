from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from radixserve.errors import UnsupportedGrammarError
from radixserve.grammar.patterns import portable_pattern
from radixserve.grammar.spec import JsonSchemaSpec, RegexSpec
from tests.grammar.following import accepts

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from radixserve.grammar.compiler import GrammarCompiler

CHARS = 'aZ_09-. \t/"\\é²٣Ⅷ日\u00a0\u2003\u2028\u0301🦜&~^[]{}$'

SPACE = "\t\n\v\f\r \u00a0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff" + "".join(
    map(chr, range(0x2000, 0x200B))
)
"""What JavaScript calls white space."""

IN_JAVASCRIPT = {
    r"^\d$": "^[0-9]$",
    r"^\D$": "^[^0-9]$",
    r"^[^\d]$": "^[^0-9]$",
    r"^\w$": "^[0-9A-Za-z_]$",
    r"^\W$": "^[^0-9A-Za-z_]$",
    r"^[^\w]$": "^[^0-9A-Za-z_]$",
    r"^[\w.-]$": "^[0-9A-Za-z_.-]$",
    r"^\s$": f"^[{SPACE}]$",
    r"^\S$": f"^[^{SPACE}]$",
    r"^[^\s]$": f"^[^{SPACE}]$",
    r"^[\d\s]$": f"^[0-9{SPACE}]$",
    r"^[\D]$": "^[^0-9]$",
    "^.$": "^[^\n\r\u2028\u2029]$",
    "^[^a-z]$": "^[^a-z]$",
    "^[&~^]$": "^[&~^]$",
    r"^\/$": "^/$",
    r"^\-$": "^-$",
}
"""A pattern, and what JavaScript reads in it, in Python's words."""


@pytest.mark.parametrize("pattern", IN_JAVASCRIPT)
def test_no_character_is_taken_that_an_engine_refuses(
    compiler: GrammarCompiler, tokenizer: Tokenizer, pattern: str
) -> None:
    spec = JsonSchemaSpec.of({"type": "string", "pattern": pattern})
    texts = [json.dumps(char, ensure_ascii=False) for char in CHARS]
    taken = [
        char
        for char, is_taken in zip(CHARS, accepts(compiler, tokenizer, spec, *texts), strict=True)
        if is_taken
    ]

    assert taken
    for engine in (pattern, IN_JAVASCRIPT[pattern]):
        assert all(re.search(engine, char) is not None for char in taken)
    ascii_chars = [char for char in CHARS if char.isascii()]
    assert [char for char in ascii_chars if re.search(pattern, char)] == [
        char for char in taken if char.isascii()
    ]


@pytest.mark.parametrize(
    ("pattern", "texts", "expected"),
    [
        (r"^good day\!$", ["good day!", "good day"], [True, False]),
        ("^a|b$", ["axx", "xxb", "xbx"], [True, True, False]),
        ("b", ["abc", "ac"], [True, False]),
        ("^(?:ab){1,2}$", ["ab", "abab", "ababab"], [True, True, False]),
        (r"^\u0041\x42[\u4e00-\u9fa5]$", ["AB日", "AB"], [True, False]),
        (r"^a{b}$", ["a{b}", "ab"], [True, False]),
        (r"^[a\]b]$", ["]", "a", "c"], [True, True, False]),
        (r"^[\w-]+@x$", ["a-b@x", "a b@x"], [True, False]),
        (r"^\t$", ["\t", "t"], [True, False]),
        ("^[[{]$", ["[", "{", "a"], [True, True, False]),
        (r"^[^\\]$", ["a", "\\", '"', "\n"], [True, False, True, True]),
        (r"^[^\"a]$", ["a", "\\", '"', "b"], [False, True, False, True]),
        (r"^[\x00-\x5b\x5d-\x7f]$", ["a", "\\", '"'], [True, False, True]),
        (r"^\W$", ["a", "\\", '"'], [False, True, True]),
    ],
)
def test_patterns_mean_what_they_say(
    compiler: GrammarCompiler,
    tokenizer: Tokenizer,
    pattern: str,
    texts: list[str],
    expected: list[bool],
) -> None:
    spec = JsonSchemaSpec.of({"type": "string", "pattern": pattern})
    quoted = [json.dumps(text, ensure_ascii=False) for text in texts]

    assert accepts(compiler, tokenizer, spec, *quoted) == expected


@pytest.mark.parametrize(
    "pattern",
    [
        *("(?=a)b", "(?!a)", "(?<=a)b", "(?i)a", "(?<n>a)", r"(a)\1", r"\bword", r"\cA", "a{,3}"),
        *("a*+", "a{2}+", "[a--b]", "[a&&b]", "[^]", "[]", "[a", "a\\", r"\ud83d\ude00"),
        *(r"[^\W\D]", r"\q"),
    ],
)
def test_what_engines_read_in_different_ways_is_refused(pattern: str) -> None:
    with pytest.raises(UnsupportedGrammarError, match="pattern"):
        portable_pattern(pattern)


def test_a_regex_is_read_like_a_pattern(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    assert accepts(compiler, tokenizer, RegexSpec(r"\w+"), "ab", "é", "a b") == [True, False, False]
