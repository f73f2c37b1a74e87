"""A trace: who asked for what, when; prompts as packed ids that stand for one or more tokens each.

    text        one id a token (of four UTF-8 bytes)       tokens_per_id 1
    hashed      one id a block of 64, 512, ... tokens      tokens_per_id 64, 512, ...

A hashed id stands for its block *and all before it*, so two prompts share exactly the leading ids
that they have in common: to the tree there is no difference.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from radixserve.errors import ConfigError
from radixserve.types import ID_BYTES

if TYPE_CHECKING:
    from radixserve.types import PackedIds

DEFAULT_BLOCK_SIZE = 16
"""Tokens a block where a trace does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRequest:
    """One request of a trace; times in seconds, lengths in tokens."""

    arrival_s: float
    path: PackedIds
    """The prompt's packed ids. A hashed trace may leave out a last block that is not full."""
    prompt_len: int
    output_len: int = 1
    session: str = ""
    """Requests of one conversation, program or agent have the same; empty where unknown."""
    turn: int = 0
    """Place in its session, from 0."""
    think_s: float = 0.0
    """Between the end of the session's previous request and this one's arrival."""
    tenant: str = ""
    priority: int = 0
    stop: str = ""
    """Why the answer ended: `tool_use`, `end_turn`, ...; empty where unknown."""


@dataclass(frozen=True)
class Trace:
    """Requests in the order of their arrival.

    Args:
        name: For titles and reports.
        requests: In replay order.
        tokens_per_id: Tokens that each id of a path stands for.
        block_size: Tokens a cache block, a multiple of `tokens_per_id`.
    """

    name: str
    requests: tuple[TraceRequest, ...]
    tokens_per_id: int = 1
    block_size: int = DEFAULT_BLOCK_SIZE

    def __post_init__(self) -> None:
        if self.block_size < 1 or self.block_size % self.tokens_per_id:
            raise ConfigError(
                f"the block size must be a multiple of the trace's {self.tokens_per_id} tokens an "
                f"id; got {self.block_size}"
            )

    def with_block_size(self, block_size: int) -> Trace:
        """Return the same requests over blocks of another size."""
        return replace(self, block_size=block_size)

    @property
    def ids_per_block(self) -> int:
        """Ids that name one cache block."""
        return self.block_size // self.tokens_per_id

    def num_full_blocks(self, request: TraceRequest) -> int:
        """Return how many whole blocks a prompt has."""
        ids = min(request.prompt_len // self.tokens_per_id, len(request.path) // ID_BYTES)
        return ids // self.ids_per_block

    def full_path(self, request: TraceRequest) -> PackedIds:
        """Return the ids of a prompt's whole blocks."""
        return request.path[: self.num_full_blocks(request) * self.ids_per_block * ID_BYTES]

    @cached_property
    def num_input_blocks(self) -> int:
        """Whole prompt blocks over all requests: the denominator of every block hit rate."""
        return sum(map(self.num_full_blocks, self.requests))

    @cached_property
    def longest_path_blocks(self) -> int:
        """Whole blocks of the longest prompt."""
        return max(map(self.num_full_blocks, self.requests), default=0)

    @cached_property
    def num_input_tokens(self) -> int:
        """Prompt tokens over all requests."""
        return sum(request.prompt_len for request in self.requests)
