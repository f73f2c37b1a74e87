"""The prefix tree of a run's calls: what was computed once, and who went on from there.

    Review: great...   812 tok   x64, saves 51,156 tok
    |- Review: fine... 31 tok
    |     -> label = 'pos'   843 in, 812 cached, 1 out
    `- ...

Drawn from the calls' prompts, token by token where the backend knows tokens, else character by
character with estimated counts.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from radixserve.frontend.outcome import MAX_CHILDREN, outcome_of, shortened
from radixserve.frontend.trace_page import page_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from radixserve.frontend.backends.encoding import TranscriptEncoder
    from radixserve.frontend.pieces import Transcript
    from radixserve.frontend.report import CallRecord, Report


@runtime_checkable
class KnowsTokens(Protocol):
    """A backend that can tell a prompt's tokens."""

    @property
    def encoder(self) -> TranscriptEncoder:
        """Makes token ids of transcripts."""
        ...


class Units(Protocol):
    """What prompts are compared by."""

    def of(self, transcript: Transcript) -> Sequence[int]:
        """Return a prompt's units."""
        ...

    def text(self, units: Sequence[int]) -> str:
        """Return the text of some units."""
        ...

    def tokens(self, count: int) -> int:
        """Return how many tokens so many units are."""
        ...

    @property
    def is_exact(self) -> bool:
        """Whether that is known, and not estimated."""
        ...


class _Tokens:
    """Token by token."""

    is_exact = True

    def __init__(self, encoder: TranscriptEncoder) -> None:
        self._encoder = encoder

    def of(self, transcript: Transcript) -> Sequence[int]:
        return self._encoder.encode(transcript)

    def text(self, units: Sequence[int]) -> str:
        return self._encoder.text_of(units)

    def tokens(self, count: int) -> int:
        return count


class _Characters:
    """Character by character."""

    is_exact = False

    def __init__(self, calls: Sequence[CallRecord]) -> None:
        length = sum(len(str(call.transcript)) for call in calls)
        tokens = sum(call.usage.input_tokens for call in calls)
        self._per_character = tokens / length if length and tokens else 0.25

    def of(self, transcript: Transcript) -> Sequence[int]:
        return [ord(character) for character in str(transcript)]

    def text(self, units: Sequence[int]) -> str:
        return "".join(map(chr, units))

    def tokens(self, count: int) -> int:
        return round(count * self._per_character)


@dataclass(slots=True)
class Node:
    """A stretch of prompt that some calls have in common."""

    units: Sequence[int]
    reach: int = 0
    """How many calls have it in their prompts."""
    calls: list[CallRecord] = field(default_factory=list)
    """Those whose prompts end here."""
    children: dict[int, Node] = field(default_factory=dict)
    """By their first units, in the order in which they came."""

    def insert(self, units: Sequence[int], call: CallRecord) -> None:
        """Add a call below this. Mutates: the tree. Complexity: O(units)."""
        node, place = self, 0
        node.reach += 1
        while place < len(units):
            child = node.children.get(units[place])
            if child is None:
                child = node.children[units[place]] = Node(units[place:])
            shared = _shared_len(child.units, units, place)
            if shared < len(child.units):
                child.split(shared)
            node, place = child, place + shared
            node.reach += 1
        node.calls.append(call)

    def split(self, length: int) -> None:
        """Keep so many units; the rest becomes the only child. Mutates: the node."""
        rest = Node(self.units[length:], self.reach, self.calls, self.children)
        self.units = self.units[:length]
        self.calls, self.children = [], {rest.units[0]: rest}


def _shared_len(edge: Sequence[int], units: Sequence[int], place: int) -> int:
    length = min(len(edge), len(units) - place)
    if edge[:length] == units[place : place + length]:
        return length
    return next(i for i in range(length) if edge[i] != units[place + i])


class Trace:
    """A report's prefix tree.

    Args:
        report: Of one run or of many.
    """

    def __init__(self, report: Report) -> None:
        calls = [call for call in report.calls if call.transcript is not None]
        self.report = report
        self.units: Units = (
            _Tokens(report.encoder) if report.encoder is not None else _Characters(calls)
        )
        self.root = Node([])
        for call in calls:
            assert call.transcript is not None
            self.root.insert(self.units.of(call.transcript), call)

    def __repr__(self) -> str:
        return f"<Trace of {self.root.reach} calls>"

    def __str__(self) -> str:
        return self.text()

    def text(self) -> str:
        """Return the tree for a terminal."""
        return "\n".join([str(self.report), *self._lines()])

    def html(self) -> str:
        """Return the tree as a page that needs nothing but itself."""
        return page_of(self)

    def show(self, html: str | FilePath | None = None) -> None:
        """Write the tree to the terminal, or as a page to a file."""
        if html is not None:
            FilePath(html).write_text(self.html(), encoding="utf-8")
            return
        sys.stdout.write(self.text() + "\n")

    def label(self, node: Node) -> str:
        """Return the beginning of a node's text, or what stands in its place."""
        text = self.units.text(node.units)
        return shortened(text) or (repr(text) if text else "(control tokens)")

    def size(self, node: Node) -> str:
        """Return how long a node is, and what that saves."""
        tokens = self.units.tokens(len(node.units))
        told = f"{'' if self.units.is_exact else '~'}{tokens:,} tok"
        if node.reach > 1:
            told += f"   x{node.reach}, saves {tokens * (node.reach - 1):,} tok"
        return told

    def _lines(self) -> Iterator[str]:
        """Draw the tree. What goes on from a place without branching stays at its indent."""
        todo: list[tuple[Node, str, str] | str] = list(reversed(self._below(self.root, "")))
        while todo:
            item = todo.pop()
            if isinstance(item, str):
                yield item
                continue
            node, lead, indent = item
            yield f"{lead}{self.label(node)}   {self.size(node)}"
            yield from (f"{indent}   {outcome_of(call)}" for call in node.calls[:MAX_CHILDREN])
            if len(node.calls) > MAX_CHILDREN:
                yield f"{indent}   ... {len(node.calls) - MAX_CHILDREN} more"
            todo += reversed(self._below(node, indent))

    def _below(self, node: Node, indent: str) -> list[tuple[Node, str, str] | str]:
        """Return a node's children, each with what its first and its other lines begin with."""
        children = list(node.children.values())
        if len(children) == 1:
            return [(children[0], indent, indent)]
        found: list[tuple[Node, str, str] | str] = [
            (child, indent + "|- ", indent + "|  ") for child in children[:MAX_CHILDREN]
        ]
        if len(children) > MAX_CHILDREN:
            hidden = sum(child.reach for child in children[MAX_CHILDREN:])
            found.append(f"{indent}`- ... {hidden} more calls")
        elif children:
            found[-1] = (children[-1], indent + "`- ", indent + "   ")
        return found
