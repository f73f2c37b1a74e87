r"""Regular expressions of JSON schemas, translated so that every reader of the schema agrees.

A schema's `pattern` is written for JavaScript's engine, checked by validators with their own, and
enforced here with a third. They differ in what ``\w``, ``\d``, ``\s`` and the dot match beyond
ASCII. The translation matches a text only if JavaScript and Python both do:

    \d \w \s      the ASCII ones
    \D \W \S      what neither calls a digit, a word character or white space
    .             no end of line of any engine
    [^...\w...]   what is left out is the wider of the readings

Syntax that one of them reads in another way is refused.
"""

from __future__ import annotations

import re

from radixserve.errors import UnsupportedGrammarError

_NARROW = {"d": "0-9", "w": "0-9A-Za-z_", "s": r" \t\n\r\f\v"}
_WIDE = {
    "d": r"\p{Nd}",
    "w": r"\p{L}\p{N}\p{M}\p{Pc}",
    "s": r" \t\n\r\f\v\x1c-\x1f\x85\u{a0}\u{1680}\u{180e}\u{2000}-\u{200b}\u{2028}\u{2029}"
    r"\u{202f}\u{205f}\u{3000}\u{feff}",
}
UNWRITABLE = r"\x00-\x07\x0b\x0e-\x1f"
"""Control characters that JSON can only write with a number, which no output does. They are left
out of every negated class: with all of them in a class, llguidance 1.9.1 takes a quotation mark or
a backslash for a member although the class excludes it."""

_LINE_ENDS = r"\n\r\u{85}\u{2028}\u{2029}"

_CONTROLS = {"t": r"\t", "n": r"\n", "r": r"\r", "f": r"\f", "v": r"\v", "0": r"\x00"}
_SYNTAX = frozenset(r"\^$.*+?()[]{}|/-")
_BOUNDS = re.compile(r"\{\d+(,\d*)?\}")
_HEX = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|u\{([0-9a-fA-F]{1,6})\}")
_PROPERTY = re.compile(r"[pP](\{[A-Za-z_]+(=[A-Za-z_]+)?\}|[A-Z])")


def portable_pattern(pattern: str, *, line_ends: str = _LINE_ENDS) -> str:
    """Return a pattern in Rust's syntax that matches what all engines match with `pattern`.

    Args:
        line_ends: What a dot does not match, as members of a class.
    Raises:
        UnsupportedGrammarError: the pattern uses what engines read differently, or what cannot be
            enforced.
    """
    return _Scanner(pattern, line_ends).translate()


def differs_between_engines(pattern: str) -> bool:
    """Whether engines differ in what the pattern matches beyond ASCII."""
    return re.search(r"\\[dDwWsSbB]", pattern) is not None


class _Scanner:
    """One pass over a pattern."""

    def __init__(self, pattern: str, line_ends: str) -> None:
        self._pattern = pattern
        self._any = f"[^{line_ends}{UNWRITABLE}]"
        self._at = 0

    def translate(self) -> str:
        parts = []
        while self._at < len(self._pattern):
            parts.append(self._next_part())
        return "".join(parts)

    def _next_part(self) -> str:
        char = self._take()
        if char == "\\":
            return self._escape()
        if char == "[":
            return self._class()
        if char == ".":
            return self._any
        if char == "{":
            return self._repeat()
        if char == "(":
            return "(" + self._group()
        if char in "*+?" and self._pattern[self._at : self._at + 1] == "+":
            raise self._refusal(f"{char}+ is read in different ways")
        return char

    def _take(self) -> str:
        if self._at >= len(self._pattern):
            raise self._refusal("it ends too early")
        char = self._pattern[self._at]
        self._at += 1
        return char

    def _escape(self) -> str:
        """After a backslash, outside a class."""
        char = self._take()
        if char in _NARROW:
            return f"[{_NARROW[char]}]"
        if char.lower() in _WIDE:
            return f"[^{_WIDE[char.lower()]}{UNWRITABLE}]"
        return self._plain_escape(char)

    def _plain_escape(self, char: str) -> str:
        if char in _CONTROLS and not self._pattern[self._at : self._at + 1].isdigit():
            return _CONTROLS[char]
        self._at -= 1
        if found := _HEX.match(self._pattern, self._at):
            self._at = found.end()
            return self._code_point(int(found[1] or found[2] or found[3], 16))
        if found := _PROPERTY.match(self._pattern, self._at):
            self._at = found.end()
            return "\\" + found[0]
        self._at += 1
        if char in _SYNTAX:
            return "\\" + char
        if char.isalnum():
            raise self._refusal(rf"\{char} is not supported")
        return self._code_point(ord(char))

    def _code_point(self, code: int) -> str:
        if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            raise self._refusal(rf"\u{code:x} is no character")
        return rf"\u{{{code:x}}}"

    def _class(self) -> str:
        """After an opening bracket."""
        is_negated = self._pattern[self._at : self._at + 1] == "^"
        self._at += is_negated
        sets, opposites = (_WIDE, _NARROW) if is_negated else (_NARROW, _WIDE)
        inside: list[str] = []
        rest: list[str] = []
        while (char := self._take()) != "]":
            if char == "-" and self._is_plain_dash(inside, sets):
                char = r"\-"
            inside.append(self._class_part(char, sets, opposites, rest))
        return self._joined("".join(inside), rest, is_negated=is_negated)

    def _joined(self, inside: str, rest: list[str], *, is_negated: bool) -> str:
        """A class and the complements named in it, as alternatives or as an intersection."""
        if is_negated:
            if rest or not inside:
                raise self._refusal("this negated class is not supported")
            return f"[^{inside}{UNWRITABLE}]"
        has_controls = re.search(r"\\[xu]|[\x00-\x1f]", inside) is not None
        written = f"[[{inside}]--[{UNWRITABLE}]]" if has_controls else f"[{inside}]"
        alternatives = [written] if inside else []
        alternatives += [f"[^{members}{UNWRITABLE}]" for members in rest]
        if not alternatives:
            raise self._refusal("an empty class matches nothing")
        return alternatives[0] if len(alternatives) == 1 else f"(?:{'|'.join(alternatives)})"

    def _class_part(
        self, char: str, sets: dict[str, str], opposites: dict[str, str], rest: list[str]
    ) -> str:
        if char == r"\-":
            return char
        if char == "[":
            return r"\["  # Rust would begin a class of classes
        if char in "&~-" and self._pattern[self._at : self._at + 1] == char:
            raise self._refusal(f"{char * 2} in a class is read in different ways")
        if char != "\\":
            return "\\" + char if char in "&~^" else char
        escaped = self._take()
        if escaped in sets:
            return sets[escaped]
        if escaped.lower() in opposites:
            rest.append(opposites[escaped.lower()])
            return ""
        return r"\x08" if escaped == "b" else self._plain_escape(escaped)

    def _is_plain_dash(self, inside: list[str], sets: dict[str, str]) -> bool:
        """Whether a dash in a class makes no range: at an end, or beside a set."""
        following = self._pattern[self._at : self._at + 2]
        return (
            not inside
            or inside[-1] in ("", *sets.values())
            or following[:1] == "]"
            or (following[:1] == "\\" and following[1:].lower() in sets)
        )

    def _repeat(self) -> str:
        """After an opening brace; one that bounds nothing is a plain character to JavaScript."""
        found = _BOUNDS.match(self._pattern, self._at - 1)
        if found is None:
            if self._pattern[self._at : self._at + 1] == ",":
                raise self._refusal("{,n} is read in different ways")
            return r"\{"
        self._at = found.end()
        if self._pattern[self._at : self._at + 1] == "+":
            raise self._refusal("}+ is read in different ways")
        return found[0]

    def _group(self) -> str:
        """After an opening parenthesis: the marks that all engines know."""
        rest = self._pattern[self._at :]
        if not rest.startswith("?"):
            return ""
        if not rest.startswith("?:"):
            raise self._refusal(f"({rest[:2]} is not supported: look-arounds, flags or names")
        self._at += 2
        return "?:"

    def _refusal(self, why: str) -> UnsupportedGrammarError:
        shown = self._pattern if len(self._pattern) <= 80 else self._pattern[:80] + "..."
        return UnsupportedGrammarError(f"the pattern {shown!r} cannot be enforced: {why}")
