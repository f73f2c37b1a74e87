"""Prompt programs: Python functions that write to a prompt and let a model go on.

import radixserve as rs


@rs.program
async def classify(p, review: str) -> str:
    p += f"Review: {review}\\nLabel: "
    return await p.select("label", ["pos", "neg"])
"""

from radixserve.frontend.act import Stop
from radixserve.frontend.backends.embedded import EmbeddedBackend
from radixserve.frontend.backends.openai import OpenAIBackend
from radixserve.frontend.backends.protocol import Backend, Capability
from radixserve.frontend.backends.remote import RemoteBackend
from radixserve.frontend.choice import Choice
from radixserve.frontend.connect import connect, embedded, openai, use
from radixserve.frontend.default_backend import Use, current_backend
from radixserve.frontend.events import (
    Delta,
    Event,
    Partial,
    Restart,
    Result,
    ToolEnd,
    ToolStart,
    Value,
)
from radixserve.frontend.program import Program, program
from radixserve.frontend.prompt import Prompt
from radixserve.frontend.record import record, replay
from radixserve.frontend.report import Report
from radixserve.frontend.scores import Score
from radixserve.frontend.session import session

__all__ = [
    "Backend",
    "Capability",
    "Choice",
    "Delta",
    "EmbeddedBackend",
    "Event",
    "OpenAIBackend",
    "Partial",
    "Program",
    "Prompt",
    "RemoteBackend",
    "Report",
    "Restart",
    "Result",
    "Score",
    "Stop",
    "ToolEnd",
    "ToolStart",
    "Use",
    "Value",
    "connect",
    "current_backend",
    "embedded",
    "openai",
    "program",
    "record",
    "replay",
    "session",
    "use",
]
