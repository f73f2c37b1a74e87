"""Calls of tools in a model's answer: one parser for each way to write them.

`styles.detect_parser` finds the way from a chat template, `styles.find_parser` from a name.
"""

from radixserve.text.tool_calls.call_parser import PassThrough, ToolCallParser
from radixserve.text.tool_calls.events import (
    AnswerEvent,
    ArgumentsPiece,
    CallEvent,
    CallStart,
    ReasoningPiece,
    TextPiece,
)
from radixserve.text.tool_calls.styles import ToolCallStyle, detect_parser, find_parser

__all__ = [
    "AnswerEvent",
    "ArgumentsPiece",
    "CallEvent",
    "CallStart",
    "PassThrough",
    "ReasoningPiece",
    "TextPiece",
    "ToolCallParser",
    "ToolCallStyle",
    "detect_parser",
    "find_parser",
]
