"""Dialogues as text: one a line, a model call for each message of the assistant.

    {"system": "..."}                                           optional, first line: for all
    {"task": 0, "trial": 0, "messages": [{"role": "user", "content": "..."}, ...]}

No times are recorded: two seconds are assumed for a tool and 10 to 40 for a person.

Source: tau-bench's historical trajectories, github.com/sierra-research/tau-bench, re-encoded.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from radixserve.replay.readers.pseudo_tokens import pseudo_tokens, render_messages
from radixserve.replay.readers.row import Row, read_rows
from radixserve.replay.trace import TraceRequest
from radixserve.types import ID_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOOL_S = 2.0
PERSON_S = (10.0, 40.0)


def read_dialogues(path: Path, *, seed: int = 0) -> Iterator[list[TraceRequest]]:
    """Yield the dialogues, each with arrivals from its own start.

    Args:
        seed: Chooses how long people think.
    Raises:
        ConfigError: a line is not such a dialogue.
    """
    rng = random.Random(seed)
    system: list[Row] = []
    for row in read_rows(path):
        if "messages" in row.fields:
            messages = system + row.rows("messages")
            yield _dialogue(messages, session=f"{path.name}:{row.line}", rng=rng)
        else:
            fields = {"role": "system", "content": row.text("system")}
            system = [Row(row.path, row.line, fields)]


def _dialogue(messages: list[Row], *, session: str, rng: random.Random) -> list[TraceRequest]:
    requests: list[TraceRequest] = []
    prompt = ""
    arrival_s = think_s = 0.0
    for message in messages:
        text = _render(message)
        if message.fields["role"] == "assistant":
            path = pseudo_tokens(prompt)
            requests.append(
                TraceRequest(
                    arrival_s=arrival_s,
                    path=path,
                    prompt_len=len(path) // ID_BYTES,
                    output_len=len(text) // ID_BYTES,
                    session=session,
                    turn=len(requests),
                    think_s=think_s,
                    stop="tool_use" if message.fields.get("tool_calls") else "end_turn",
                )
            )
        think_s = _think_s(message.fields["role"], rng) if requests else 0.0
        arrival_s += think_s
        prompt += text
    return requests


def _think_s(role: str, rng: random.Random) -> float:
    """Return the seconds that a message took to come."""
    if role == "tool":
        return TOOL_S
    return rng.uniform(*PERSON_S) if role == "user" else 0.0


def _render(message: Row) -> str:
    try:
        return render_messages([message.fields])
    except (KeyError, TypeError):
        raise message.error("a message has a role, content and perhaps tool_calls") from None
