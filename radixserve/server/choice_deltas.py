"""From the streams of a call's sequences to those of its choices.

    sequences   0 1 2 | 3 4 5        made = 3 for each prompt
    choices     0 1   | 2 3          kept = 2: the best ones

Only the steps between the two that a call needs are taken.
"""

from __future__ import annotations

import math
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from radixserve.server.merge import open_streams
from radixserve.types import FinishReason

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Sequence
    from typing import TypeAlias

    from radixserve.engine.async_engine import AsyncEngine
    from radixserve.engine.request import GenerateRequest, TextDelta
    from radixserve.server.protocol.answers import AnswerOptions
    from radixserve.server.protocol.usage import UsageTally
    from radixserve.types import TokenLogprob

    Indexed: TypeAlias = tuple[int, TextDelta]
    ChoiceDeltas: TypeAlias = AsyncIterator[Indexed]


class Step(Protocol):
    """Takes deltas in, and gives some out, at once or later."""

    def push(self, index: int, delta: TextDelta) -> Iterable[Indexed]:
        """Take one in; return those that go on. Mutates: the step."""
        ...

    def end(self) -> Iterable[Indexed]:
        """Return what waited for the last one."""
        ...


@asynccontextmanager
async def open_choices(
    engine: AsyncEngine,
    requests: Sequence[GenerateRequest],
    options: AnswerOptions,
    tally: UsageTally,
) -> AsyncIterator[ChoiceDeltas]:
    """Run a call's requests and read its choices, each delta with its choice's index.

    Leaving, for whatever reason, aborts what still runs.

    Args:
        tally: Is told what every sequence uses, kept or not.
    Raises:
        RequestError: a request was refused.
    """
    steps: list[Step] = []
    if any(request.params.prompt_logprobs is not None for request in requests):
        steps.append(WholePrompts(options.made))
    if options.drops_output:
        steps.append(WithoutOutput())
    steps.append(Counting(tally))
    if options.kept < options.made:
        steps.append(BestOf(made=options.made, kept=options.kept))
    async with (
        open_streams(engine, requests) as deltas,
        aclosing(_choices(deltas, steps)) as choices,
    ):
        yield choices


async def _choices(deltas: ChoiceDeltas, steps: Sequence[Step]) -> AsyncGenerator[Indexed, None]:
    async for index, delta in deltas:
        for choice in _through(steps, [(index, delta)]):
            yield choice
    for place, step in enumerate(steps):
        for choice in _through(steps[place + 1 :], step.end()):
            yield choice


def _through(steps: Sequence[Step], deltas: Iterable[Indexed]) -> Iterable[Indexed]:
    for step in steps:
        deltas = [passed for index, delta in deltas for passed in step.push(index, delta)]
    return deltas


class _StepByStep:
    """A step that keeps nothing back."""

    def end(self) -> Iterable[Indexed]:
        """Return nothing."""
        return ()


class Counting(_StepByStep):
    """Tells a tally of each delta."""

    def __init__(self, tally: UsageTally) -> None:
        self._tally = tally

    def push(self, index: int, delta: TextDelta) -> Iterable[Indexed]:
        """Pass it on. Mutates: the tally."""
        self._tally.see(index, delta.usage)
        return ((index, delta),)


class WithoutOutput(_StepByStep):
    """Leaves out the one token that a prompt needs to be looked at."""

    def push(self, index: int, delta: TextDelta) -> Iterable[Indexed]:
        """Pass on what is left: an output of length zero."""
        usage = replace(delta.usage, completion_tokens=0, forced_tokens=0)
        reason = None if delta.finish_reason is None else FinishReason.LENGTH
        bare = replace(delta, text="", token_ids=(), logprobs=(), stop_reason=None)
        return ((index, replace(bare, finish_reason=reason, usage=usage)),)


class WholePrompts(_StepByStep):
    """Gives the first delta of every sequence all that is told of its prompt.

    The engine tells of a prompt as it is computed, and to the first of its sequences alone: for
    the others it would have to be computed again. They wait here until it is known.

    Args:
        made: Sequences of each prompt.
    """

    def __init__(self, made: int) -> None:
        self._made = made
        self._held: dict[int, TextDelta] = {}
        self._scores: dict[int, tuple[TokenLogprob, ...]] = {}
        self._begun: set[int] = set()

    def push(self, index: int, delta: TextDelta) -> Iterator[Indexed]:
        """Hold it, or pass it on with those that waited for it."""
        if index in self._begun:
            yield index, delta
            return
        prompt, place = divmod(index, self._made)
        held = self._held.get(index)
        delta = self._held[index] = delta if held is None else held.merged_with(delta)
        if place == 0 and (delta.token_ids or delta.finish_reason is not None):
            self._scores[prompt] = delta.prompt_logprobs
        if prompt in self._scores:
            yield from self._begin(prompt)

    def _begin(self, prompt: int) -> Iterator[Indexed]:
        for index in range(prompt * self._made, (prompt + 1) * self._made):
            if index in self._held:
                self._begun.add(index)
                first = self._held.pop(index)
                yield index, replace(first, prompt_logprobs=self._scores[prompt])


class BestOf:
    """Waits for all sequences and passes on the best ones of each prompt, the best first.

    Args:
        made: Sequences of each prompt.
        kept: How many of them become choices.
    """

    def __init__(self, *, made: int, kept: int) -> None:
        self._made = made
        self._kept = kept
        self._heard: dict[int, list[TextDelta]] = {}

    def push(self, index: int, delta: TextDelta) -> Iterable[Indexed]:
        """Keep it."""
        self._heard.setdefault(index, []).append(delta)
        return ()

    def end(self) -> Iterator[Indexed]:
        """Return the best sequences, under the indices of choices."""
        for prompt in range(len(self._heard) // self._made):
            places = range(prompt * self._made, (prompt + 1) * self._made)
            ranked = sorted((self._heard[at] for at in places), key=mean_logprob, reverse=True)
            for place, deltas in enumerate(ranked[: self._kept]):
                for delta in deltas:
                    yield prompt * self._kept + place, delta


def mean_logprob(deltas: Sequence[TextDelta]) -> float:
    """Return an output's log-probability per token; an output of no tokens is the worst."""
    values = [entry.logprob for delta in deltas for entry in delta.logprobs]
    return math.fsum(values) / len(values) if values else -math.inf
