"""Counting the tokens of a call: each prompt once, every output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from radixserve.engine.request import Usage


class UsageTally:
    """The sum over a call's sequences, kept up to date as they go on.

    The sequences that continue one prompt count its tokens once. Of the prompt's cached tokens the
    first sequence's are counted: what the others found is what the first has computed.

    Args:
        per_prompt: Sequences that continue one prompt; their indices are neighbours.
    """

    def __init__(self, per_prompt: int = 1) -> None:
        self._per_prompt = per_prompt
        self._seen: dict[int, Usage] = {}
        self._prompts: dict[int, int] = {}
        """Prompt -> the first of its sequences that has been heard of."""
        self._completion = self._forced = 0

    def see(self, index: int, usage: Usage) -> None:
        """Take in what a sequence has used so far. Mutates: the sums. Complexity: O(1)."""
        before = self._seen.get(index)
        self._completion += usage.completion_tokens - (before.completion_tokens if before else 0)
        self._forced += usage.forced_tokens - (before.forced_tokens if before else 0)
        self._seen[index] = usage
        prompt = index // self._per_prompt
        self._prompts[prompt] = min(index, self._prompts.get(prompt, index))

    def json(self) -> dict[str, Any]:
        """Return the usage so far. Complexity: O(prompts)."""
        firsts = [self._seen[index] for index in self._prompts.values()]
        prompt = sum(usage.prompt_tokens for usage in firsts)
        cached = sum(usage.cached_tokens for usage in firsts)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": self._completion,
            "total_tokens": prompt + self._completion,
            "prompt_tokens_details": {"cached_tokens": cached},
            "completion_tokens_details": {"forced_tokens": self._forced},
        }
