"""Four workloads that differ in how much their prompts share, for figures that can be compared.

w1  few-shot      one prefix of 1,000 tokens, questions of 30 to 60, 32 output tokens, 64 requests
w2  chat          8 conversations of 5 turns, users say 40 to 120 tokens, 48 output tokens
w3  agent tree    4 system prompts (600) x 4 tool contexts (300) x 4 leaves (40), 32 output tokens
w4  no sharing    48 random prompts of 400 tokens, 64 output tokens
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve.bench.datasets import Span, agent_tree, conversations, independent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from radixserve.bench.workload import Session

_W2_TURNS = 5


def few_shot(seed: int, count: int | None = None) -> list[Session]:
    """Return w1, or its first `count` requests."""
    return independent(
        count or 64, Span(30, 60), Span(32, 32), seed=seed, prefix_len=1000, name="w1"
    )


def chat(seed: int, count: int | None = None) -> list[Session]:
    """Return w2, or as many of its conversations as make up to `count` requests."""
    return conversations(
        max(1, (count or 40) // _W2_TURNS),
        num_turns=_W2_TURNS,
        system_len=100,
        users=Span(40, 120),
        output_len=48,
        seed=seed,
        name="w2",
    )


def tree(seed: int, count: int | None = None) -> list[Session]:
    """Return w3, or the first `count` requests in its order."""
    return agent_tree((4, 4, 4), (600, 300, 40), 32, seed=seed, name="w3")[:count]


def no_sharing(seed: int, count: int | None = None) -> list[Session]:
    """Return w4, or its first `count` requests."""
    return independent(count or 48, Span(400, 400), Span(64, 64), seed=seed, name="w4")


PRESETS: Mapping[str, Callable[[int, int | None], list[Session]]] = {
    "w1": few_shot,
    "w2": chat,
    "w3": tree,
    "w4": no_sharing,
}
"""Name -> (seed, number of requests or None for its own) -> sessions."""
