"""How many prompt tokens the best cache would have found: one without end, asked in the best order.

Prompts and outputs are laid into one trie. A node that an output has computed is free; any other is
computed once, by the first prompt that has it. The last token of a prompt is always computed, since
a cache of KV holds no logits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from radixserve.types import TokenId

    Trie = dict[TokenId, Any]


def least_computed(calls: Iterable[tuple[Sequence[TokenId], Sequence[TokenId]]]) -> int:
    """Return the fewest prompt tokens that any cache and order must compute.

    Args:
        calls: Of each call the ids of its prompt, and those of its output whose KV it has computed.
    Complexity: O(tokens of all calls).
    """
    trie: Trie = {}
    listed = list(calls)
    for prompt, output in listed:
        node = trie
        for token in (*prompt, *output):
            node = node.setdefault(token, {})
    paid = _computed_by_outputs(trie, listed)
    total = 0
    for prompt, _ in sorted(listed, key=lambda call: len(call[0])):
        total += max(1, _pay(trie, prompt, paid))
    return total


def _computed_by_outputs(
    trie: Trie, calls: Sequence[tuple[Sequence[TokenId], Sequence[TokenId]]]
) -> set[int]:
    """Return the nodes that outputs compute, by identity."""
    free: set[int] = set()
    for prompt, output in calls:
        node = trie
        for token in prompt:
            node = node[token]
        for token in output:
            node = node[token]
            free.add(id(node))
    return free


def _pay(trie: Trie, prompt: Sequence[TokenId], paid: set[int]) -> int:
    """Return how many of a prompt's nodes nobody has paid yet. Mutates: `paid`."""
    before = len(paid)
    node = trie
    for token in prompt:
        node = node[token]
        paid.add(id(node))
    return len(paid) - before
