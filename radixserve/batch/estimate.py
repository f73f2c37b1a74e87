"""What a file will cost, found out without running it: tokens, what is shared, and the KV."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True, slots=True)
class LineCost:
    """What one request brings.

    Attributes:
        prompts: Token ids of each of its prompts.
        output_len: Most output tokens of each sequence.
        siblings: Sequences of each prompt.
    """

    prompts: Sequence[Sequence[int]]
    output_len: int
    siblings: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A whole file, run in the order it was measured in; lengths in tokens."""

    num_lines: int
    num_refused: int
    """Lines that the routes would refuse."""
    prompt_tokens: int
    shared_tokens: int
    """Of the prompts, what the prompt before begins with as well."""
    max_output_tokens: int
    longest: int
    """Of one sequence, with its output."""
    block_size: int
    blocks_for_longest: int
    """The least a pool must have."""
    blocks_at_once: int
    """For every prefix to be computed once, with as many requests under way as were asked for."""
    blocks_for_all: int
    """For all prompts to be cached at the end."""

    @property
    def computed_tokens(self) -> int:
        """Prompt tokens that must be computed."""
        return self.prompt_tokens - self.shared_tokens


class Estimator:
    """Adds up requests in the order in which they are to be sent.

    Args:
        block_size: Tokens a block.
        concurrency: Requests under way at once.
    """

    def __init__(self, *, block_size: int, concurrency: int) -> None:
        self._block_size = block_size
        self._window: deque[tuple[int, int]] = deque(maxlen=concurrency)
        """(blocks that are shared with the prompt before, blocks of its own) of the last ones."""
        self._own_blocks = 0
        self._before: Sequence[int] = ()
        self._num_lines = self._num_refused = 0
        self._prompt_tokens = self._shared_tokens = self._output_tokens = 0
        self._longest = self._at_once = self._for_all = 0

    def refuse(self) -> None:
        """Count a line that a route would refuse."""
        self._num_lines += 1
        self._num_refused += 1

    def add(self, cost: LineCost) -> None:
        """Count a request. Complexity: O(prompt tokens)."""
        self._num_lines += 1
        for ids in cost.prompts:
            shared = min(common_len(self._before, ids), max(0, len(ids) - 1))
            self._before = ids
            self._prompt_tokens += len(ids)
            self._shared_tokens += shared
            self._output_tokens += cost.output_len * cost.siblings
            self._longest = max(self._longest, len(ids) + cost.output_len)
            self._hold(len(ids), shared, cost)

    def estimate(self) -> Estimate:
        """Return what has been added up."""
        return Estimate(
            num_lines=self._num_lines,
            num_refused=self._num_refused,
            prompt_tokens=self._prompt_tokens,
            shared_tokens=self._shared_tokens,
            max_output_tokens=self._output_tokens,
            longest=self._longest,
            block_size=self._block_size,
            blocks_for_longest=self._blocks(self._longest),
            blocks_at_once=self._at_once,
            blocks_for_all=self._for_all,
        )

    def _hold(self, prompt_len: int, shared: int, cost: LineCost) -> None:
        """See how much the last requests hold together."""
        held = shared // self._block_size
        prompt = self._blocks(prompt_len) - held
        output = self._blocks(prompt_len + cost.output_len) - held - prompt
        own = prompt + output + (cost.siblings - 1) * (output + 1)
        if len(self._window) == self._window.maxlen:
            self._own_blocks -= self._window[0][1]
        self._window.append((held, own))
        self._own_blocks += own
        self._at_once = max(self._at_once, self._window[0][0] + self._own_blocks)
        self._for_all += prompt

    def _blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)


def estimate_lines(
    costs: Iterable[LineCost | None], *, block_size: int, concurrency: int
) -> Estimate:
    """Return the estimate of requests in the order in which they are to be sent.

    Args:
        costs: None stands for a line that a route would refuse.
        block_size: Tokens a block.
        concurrency: Requests under way at once.
    """
    estimator = Estimator(block_size=block_size, concurrency=concurrency)
    for cost in costs:
        if cost is None:
            estimator.refuse()
        else:
            estimator.add(cost)
    return estimator.estimate()


def common_len(first: Sequence[int], second: Sequence[int]) -> int:
    """Return how many leading ids two prompts have in common."""
    for place, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return place
    return min(len(first), len(second))
