"""A runner without a model that remembers what was written to every slot of the KV pool.

For each slot it keeps the whole prefix whose KV a real model would have put there. Before it
computes a row it verifies that the row's table really holds that row's prefix: invariant 10 and
the promise that cached equals uncached, checked at every step.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from radixserve.core.plan import StepResult
from radixserve.types import Namespace, unpack_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from radixserve.core.plan import ScheduledReq, StepPlan
    from radixserve.types import ReqId, TokenId

Prefix = tuple[Namespace, tuple[int, ...]]


class FakeRunner:
    """Executes plans on a shadow of the KV pool.

    Args:
        block_size: Tokens a block.
        vocab_size: Next tokens are drawn from 0 .. vocab_size - 1 by a hash of the whole prefix.
        namespace_of: Tells which namespace a Req belongs to.
    """

    def __init__(
        self,
        *,
        block_size: int,
        vocab_size: int,
        namespace_of: Callable[[ReqId], Namespace] = lambda _: Namespace(),
    ) -> None:
        self.block_size = block_size
        self.vocab_size = vocab_size
        self.computed_tokens = 0
        self._namespace_of = namespace_of
        self._slots: dict[tuple[int, int], Prefix] = {}

    def execute(self, plan: StepPlan, row_errors: Mapping[int, str] | None = None) -> StepResult:
        """Make the copies, compute every row, and return the next tokens."""
        self._copy(plan)
        tokens = tuple(self._compute(row) for row in plan.reqs)
        return StepResult(plan.step, tokens, row_errors or {})

    def next_token(self, prefix: tuple[int, ...]) -> TokenId:
        """Return the token that follows `prefix`: a function of it and of nothing else."""
        digest = hashlib.blake2b(repr(prefix).encode(), digest_size=4).digest()
        return int.from_bytes(digest, "little") % self.vocab_size

    def _copy(self, plan: StepPlan) -> None:
        read = {
            (copy.target, offset): self._slots.get((copy.source, offset))
            for copy in plan.copies
            for offset in range(copy.num_tokens)
        }
        for slot, prefix in read.items():
            assert prefix is not None, f"step {plan.step} copies a slot that was never written"
            self._slots[slot] = prefix

    def _compute(self, row: ScheduledReq) -> TokenId | None:
        table = unpack_ids(row.block_table)
        namespace = self._namespace_of(row.req_id)
        prefix = self._read(table, row.start, namespace)
        for token in unpack_ids(row.token_ids):
            prefix = (*prefix, token)
            self._slots[self._slot(table, len(prefix) - 1)] = (namespace, prefix)
        self.computed_tokens += row.extend_len
        return self.next_token(prefix) if row.sampling is not None else None

    def _read(self, table: list[int], length: int, namespace: Namespace) -> tuple[int, ...]:
        """Return the prefix held by the first `length` slots, each of which must agree with it."""
        if length == 0:
            return ()
        stored = self._slots[self._slot(table, length - 1)]
        assert stored[0] == namespace, f"KV of {stored[0]} is read by {namespace}"
        prefix = stored[1]
        assert len(prefix) == length, f"slot {length - 1} holds KV for position {len(prefix) - 1}"
        for position in range(length):
            held = self._slots[self._slot(table, position)]
            assert held == (namespace, prefix[: position + 1]), f"wrong KV at {position}"
        return prefix

    def _slot(self, table: list[int], position: int) -> tuple[int, int]:
        return table[position // self.block_size], position % self.block_size
