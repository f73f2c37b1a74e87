"""Depth first over the tree of the waiting prompts.

Sorted by their tokens, prompts that share a prefix are neighbours, and walking the sorted list is
walking the prefix tree depth first:

    waiting, sorted       root
      a b c 1              `- a b c -+- 1
      a b c 2                        |- 2        cursor: after the Req admitted last
      a b d        ->      |- a b d  `- ...
      x y                  `- x y

So the next Req is the one behind the cursor. It shares with the Req admitted last at least as much
as any other one behind it does, and a whole subtree is finished before it is left: its shared part
is computed once and need not stay in the cache afterwards. Finding the next one is a search in a
sorted list; nothing is matched against the cache, whatever the length of the queue.

A Req that arrives behind the cursor waits for the next round, at most for all others: `Sweep`
therefore lets the one that arrived first go ahead from time to time, and goes on *from there*.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

    from radixserve.core.policies.protocol import QueueView
    from radixserve.core.req import Req
    from radixserve.core.waiting import WaitingQueue

    PromptKey: TypeAlias = tuple[str, str, str, bytes]

START: PromptKey = ("", "", "", b"")
"""Where a sweep begins: before every prompt."""
AGED_EVERY = 128
"""Of this many admissions, at least one is the Req that arrived first."""


def prompt_key(req: Req) -> PromptKey:
    """Sort key: what may share KV is side by side, ordered by its tokens. Copies nothing."""
    space = req.spec.namespace
    return (space.model, space.adapter, space.salt, req.spec.prompt)


class DepthFirst:
    """Depth first over all waiting prompts, whatever their priority and age."""

    honours_priority = False

    def __init__(self) -> None:
        self._cursor = START

    def sort_key(self, req: Req) -> PromptKey:
        """By namespace and tokens."""
        return prompt_key(req)

    def candidates(self, queue: WaitingQueue, view: QueueView) -> Iterator[Req]:
        """Yield from the cursor to the end, then from the beginning. Complexity: O(log n)."""
        del view
        yield from queue.from_key(self._cursor)
        yield from queue.between(START, self._cursor)

    def admitted(self, req: Req) -> None:
        """Go on behind this one."""
        self._cursor = prompt_key(req)


class TurnOfAge:
    """Counts admissions and says when it is the turn of the Req that arrived first."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._since = 0
        self._oldest: int | None = None
        """Its arrival: to hold the Req itself would keep it alive after its end."""

    def is_due(self, queue: WaitingQueue) -> bool:
        """Whether the next admission must be the oldest Req, which is taken note of."""
        oldest = queue.oldest()
        self._oldest = oldest.arrival if oldest is not None else None
        return self._since + 1 >= self._every

    def admitted(self, req: Req) -> None:
        """Count an admission. The turn stays due until the oldest has been admitted."""
        self._since = 0 if req.arrival == self._oldest else self._since + 1


class Sweep:
    """Depth first within the highest priority, with a bound on everybody's wait.

    Each `aged_every`-th admission is the Req that arrived first, of whatever priority, and the
    sweep goes on from its place: its siblings come next, so that little is lost.

    Bound: with m Reqs before it in order of arrival, a Req is admitted after at most
    (m + 1) * aged_every admissions, not counting those made while it or one of the m waits for a
    prefix that is being computed: each turn of age takes the first of them, and admission never
    passes over a Req that does not fit.
    """

    honours_priority = True

    def __init__(self, aged_every: int = AGED_EVERY) -> None:
        self._age = TurnOfAge(aged_every)
        self._cursors: dict[int, PromptKey] = {}
        """Priority -> where its sweep is."""

    def sort_key(self, req: Req) -> tuple[int, PromptKey]:
        """By priority, then namespace and tokens."""
        return (-req.spec.priority, prompt_key(req))

    def candidates(self, queue: WaitingQueue, view: QueueView) -> Iterator[Req]:
        """Yield the aged one if it is its turn, then sweep. Complexity: O(log n)."""
        del view
        if self._age.is_due(queue):
            yield from queue
            return
        for rank in self._ranks(queue):
            cursor = self._cursors.get(rank, START)
            yield from queue.between((rank, cursor), (rank + 1,))
            yield from queue.between((rank,), (rank, cursor))

    def admitted(self, req: Req) -> None:
        """Go on behind this one, and count towards the turn of age."""
        self._cursors[-req.spec.priority] = prompt_key(req)
        self._age.admitted(req)

    def _ranks(self, queue: WaitingQueue) -> Iterator[int]:
        """Yield the negated priorities that wait, the highest priority first."""
        rank: int | None = None
        while True:
            after = queue.from_key((rank + 1,)) if rank is not None else iter(queue.indexed)
            first = next(after, None)
            if first is None:
                return
            rank = -first.spec.priority
            yield rank
