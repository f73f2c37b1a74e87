"""Prompts of a trace as tokens for the scheduler, at a scale of so many real tokens to one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve.errors import ConfigError
from radixserve.types import ID_BYTES, pack_ids

if TYPE_CHECKING:
    from radixserve.replay.trace import Trace, TraceRequest
    from radixserve.types import PackedIds, TokenId

FIRST_REST_ID = 0xFC00_0000
FIRST_OUTPUT_ID = 0xF800_0000
"""Ids that no trace has: these bytes do not occur in UTF-8, and hashed ids are smaller."""
MOST_SCALE = 16
LEAST_BLOCK = 16


class ScaledPrompts:
    """Turns the requests of a trace into token ids.

    An id that stands for many tokens becomes itself, repeated. What a hashed trace does not name
    (the rest of a prompt after its last block, and all answers) gets an id of the request's own,
    so that nobody shares it: an answer that a follow-up repeats is not found in the cache.

    Args:
        scale: Real tokens that one token stands for; chosen when None.
    Raises:
        ConfigError: the scale does not divide the tokens of an id.
    """

    def __init__(self, trace: Trace, scale: int | None = None) -> None:
        self.scale = default_scale(trace) if scale is None else scale
        if self.scale < 1 or trace.tokens_per_id % self.scale:
            raise ConfigError(
                f"the scale must divide the trace's {trace.tokens_per_id} tokens an id; "
                f"got {self.scale}"
            )
        self.block_size = trace.block_size // self.scale
        """Scaled tokens a block."""
        self._tokens_per_id = trace.tokens_per_id // self.scale

    def tokens(self, number: int, request: TraceRequest) -> PackedIds:
        """Return the prompt of the request that has this number. Complexity: O(tokens)."""
        length = self.prompt_len(request)
        tokens = _repeat(request.path, self._tokens_per_id)[: length * ID_BYTES]
        missing = length - len(tokens) // ID_BYTES
        return tokens + pack_ids((FIRST_REST_ID + number,)) * missing

    def prompt_len(self, request: TraceRequest) -> int:
        """Return the scaled length of a prompt, at least 1."""
        return max(1, request.prompt_len // self.scale)

    def output_len(self, request: TraceRequest) -> int:
        """Return the scaled length of an answer, at least 1."""
        return max(1, request.output_len // self.scale)


def output_token(number: int) -> TokenId:
    """Return the token that answers of the request with this number consist of."""
    return FIRST_OUTPUT_ID + number


def default_scale(trace: Trace) -> int:
    """Return the largest scale that leaves `LEAST_BLOCK` tokens a block, up to `MOST_SCALE`."""
    scale = MOST_SCALE
    while trace.tokens_per_id % scale or trace.block_size // scale < LEAST_BLOCK:
        scale //= 2
        if scale <= 1:
            return 1
    return scale


def _repeat(path: PackedIds, times: int) -> PackedIds:
    if times == 1:
        return path
    return b"".join(path[i : i + ID_BYTES] * times for i in range(0, len(path), ID_BYTES))
