"""Sends sessions to a target, turn after turn, and keeps what came back."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from radixserve.bench.dialogue import Dialogue, Prompt
    from radixserve.bench.target import Outcome, Target


@dataclass(frozen=True, slots=True)
class Load:
    """What a run gave."""

    outcomes: tuple[Outcome, ...]
    """In the order in which they ended."""
    duration_s: float
    num_planned: int
    """Requests there were to send; a session that fails is not gone on with."""


async def run_load(
    dialogues: Sequence[Dialogue],
    target: Target,
    *,
    arrivals: Sequence[float],
    concurrency: int | None = None,
    on_outcome: Callable[[Outcome], None] | None = None,
) -> Load:
    """Send every session and return when all have ended.

    A session's next turn lines up behind the requests that wait already, so that where there are
    few places all sessions go on side by side.

    Args:
        arrivals: When each session's first turn may be sent, seconds from now.
        concurrency: Most requests under way; None for no limit.
        on_outcome: Called as each request ends.
    """
    outcomes: list[Outcome] = []
    places: contextlib.AbstractAsyncContextManager[object]
    places = asyncio.Semaphore(concurrency) if concurrency else contextlib.nullcontext()
    # Drawing long prompts takes milliseconds that belong to no server.
    openings = [dialogue.ask(dialogue.session.turns[0]) for dialogue in dialogues]
    started_at = time.perf_counter()

    async def send(name: str, prompt: Prompt, output_len: int) -> Outcome:
        async with places:
            outcome = await target.send(name, prompt, output_len)
        outcomes.append(outcome)
        if on_outcome is not None:
            on_outcome(outcome)
        return outcome

    async def follow(dialogue: Dialogue, prompt: Prompt, at_s: float) -> None:
        await asyncio.sleep(max(0.0, started_at + at_s - time.perf_counter()))
        turns = dialogue.session.turns
        for number, turn in enumerate(turns):
            if number > 0:
                prompt = dialogue.ask(turn)
            outcome = await send(f"{dialogue.session.name}#{number}", prompt, turn.output_len)
            if outcome.failure is not None:
                return
            dialogue.answered(outcome.text, outcome.token_ids)

    async with asyncio.TaskGroup() as group:
        for dialogue, prompt, at_s in zip(dialogues, openings, arrivals, strict=True):
            group.create_task(follow(dialogue, prompt, at_s))
    planned = sum(len(dialogue.session.turns) for dialogue in dialogues)
    return Load(tuple(outcomes), time.perf_counter() - started_at, planned)
