"""A runner without a model that remembers what was written to every slot of the KV pool.

For each slot, of the pool and of the swap space in host memory, it keeps the whole prefix whose
KV a real model would have put there. Before it computes a row it verifies that the row's table
really holds that row's prefix: invariant 10 and the promise that cached equals uncached, checked
at every step.

Like a model with a grammar it may force tokens after a sampled one, and like a model it tells how
likely the prompt's tokens were: both are functions of the prefix alone.

A prefix is a node of a trie that only grows, so that two slots agree if they hold the same object.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from radixserve.core.plan import StepResult
from radixserve.types import Namespace, TokenLogprob, pack_ids, unpack_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from radixserve.core.plan import BlockSwap, ScheduledReq, StepPlan
    from radixserve.types import ReqId, TokenId

_MIX = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def _mixed(digest: int, token: int) -> int:
    digest = ((digest ^ (token + 1)) * _MIX) & _MASK
    return digest ^ (digest >> 29)


def _digest(tokens: Sequence[int]) -> int:
    digest = 0
    for token in tokens:
        digest = _mixed(digest, token)
    return digest


def score(prefix: Sequence[int], token: TokenId) -> TokenLogprob:
    """Return what the runner tells of `token` after `prefix`: no two places are told alike."""
    return _score(_digest(prefix), len(prefix), token)


def _score(digest: int, length: int, token: TokenId) -> TokenLogprob:
    return TokenLogprob(token, -float(length), 1 + _mixed(digest, token) % 9973)


def _scores(row: ScheduledReq, prefixes: Sequence[Prefix]) -> tuple[TokenLogprob, ...]:
    assert row.scoring is not None
    targets = unpack_ids(row.scoring.targets)
    told = prefixes[row.scoring.first_row : row.scoring.first_row + len(targets)]
    assert 0 < len(told) == len(targets), f"{row} wants scores of rows that it has not"
    return tuple(before.score(token) for before, token in zip(told, targets, strict=True))


def _wants_logprobs(row: ScheduledReq) -> bool:
    return row.sampling is not None and row.sampling.params.logprobs is not None


class Prefix:
    """Some tokens after a namespace's root: there is one object for each such sequence."""

    __slots__ = ("digest", "length", "longer", "namespace", "parent", "token")

    def __init__(self, namespace: Namespace, parent: Prefix | None, token: int) -> None:
        self.namespace = namespace
        self.parent = parent
        self.token = token
        self.length: int = parent.length + 1 if parent else 0
        self.digest: int = _mixed(parent.digest, token) if parent else 0
        self.longer: dict[int, Prefix] = {}

    def __repr__(self) -> str:
        return f"<Prefix {self.tokens} of {self.namespace}>"

    @property
    def tokens(self) -> tuple[int, ...]:
        """The sequence itself."""
        return (*self.parent.tokens, self.token) if self.parent else ()

    def score(self, token: int) -> TokenLogprob:
        """How likely `token` is after this."""
        return _score(self.digest, self.length, token)

    def then(self, token: int) -> Prefix:
        """The prefix that is one token longer."""
        longer = self.longer.get(token)
        if longer is None:
            longer = self.longer[token] = Prefix(self.namespace, self, token)
        return longer


Slots: TypeAlias = "dict[tuple[int, int], Prefix]"


def _pairs(swap: BlockSwap) -> Iterator[tuple[int, int]]:
    return zip(unpack_ids(swap.blocks), unpack_ids(swap.host_blocks), strict=True)


class FakeRunner:
    """Executes plans on a shadow of the KV pool.

    Args:
        block_size: Tokens a block.
        vocab_size: Next tokens are drawn from 0 .. vocab_size - 1 by a hash of the whole prefix.
        namespace_of: Tells which namespace a Req belongs to.
        max_forced: Most tokens forced after a sampled one; after many of them none is.
    """

    def __init__(
        self,
        *,
        block_size: int,
        vocab_size: int,
        namespace_of: Callable[[ReqId], Namespace] = lambda _: Namespace(),
        max_forced: int = 0,
    ) -> None:
        self.block_size = block_size
        self.vocab_size = vocab_size
        self.max_forced = max_forced
        self.computed_tokens = 0
        self.copied_tokens = 0
        self.swapped_out_blocks = 0
        self.swapped_in_blocks = 0
        self.slots: dict[tuple[int, int], Prefix] = {}
        """(block, offset) -> the prefix whose last token's KV is there."""
        self.host_slots: dict[tuple[int, int], Prefix] = {}
        """The same for blocks of the swap space."""
        self._last_step = 0
        self._last_tokens: dict[int, TokenId] = {}
        """What each row of the last step sampled."""
        self._namespace_of = namespace_of
        self._roots: dict[Namespace, Prefix] = {}

    def execute(self, plan: StepPlan, row_errors: Mapping[int, str] | None = None) -> StepResult:
        """Swap, make the copies, compute every row, and say what follows and how likely it was."""
        self._swap(plan)
        self._copy(plan)
        assert plan.follows in (None, self._last_step), f"step {plan.step} is out of order"
        rows = [self._compute(self._known(row)) for row in plan.reqs]
        drawn = {
            at: self._drawn(prefixes[-1].digest)
            for at, (row, prefixes) in enumerate(zip(plan.reqs, rows, strict=True))
            if row.sampling is not None
        }
        self._last_step = plan.step
        self._last_tokens = {at: tokens[0] for at, tokens in drawn.items()}
        return StepResult(
            plan.step,
            tuple(drawn[at][0] if at in drawn else None for at in range(len(rows))),
            row_errors or {},
            forced_tokens={at: tokens[1:] for at, tokens in drawn.items() if tokens[1:]},
            logprobs={
                at: rows[at][-1].score(tokens[0])
                for at, tokens in drawn.items()
                if _wants_logprobs(plan.reqs[at])
            },
            prompt_logprobs={
                at: _scores(row, rows[at])
                for at, row in enumerate(plan.reqs)
                if row.scoring is not None
            },
        )

    def next_tokens(self, prefix: Sequence[int]) -> tuple[TokenId, ...]:
        """Return the token that follows `prefix` and those forced after it: a function of it."""
        return self._drawn(_digest(prefix))

    def _drawn(self, digest: int) -> tuple[TokenId, ...]:
        token = (digest >> 17) % self.vocab_size
        digest = _mixed(digest, token)
        count = (digest >> 23) % (2 * self.max_forced + 1)
        forced = (_mixed(digest, i) >> 13 for i in range(count if count <= self.max_forced else 0))
        return (token, *(value % self.vocab_size for value in forced))

    def _swap(self, plan: StepPlan) -> None:
        for swap in plan.swap_outs:
            self.swapped_out_blocks += swap.num_blocks
            for source, target in _pairs(swap):
                self._move(self.slots, source, self.host_slots, target)
        for swap in plan.swap_ins:
            self.swapped_in_blocks += swap.num_blocks
            for target, source in _pairs(swap):
                self._move(self.host_slots, source, self.slots, target)

    def _move(self, here: Slots, source: int, there: Slots, target: int) -> None:
        """Make one block a copy of another; slots that were never written become that again."""
        assert (source, 0) in here, f"block {source} is swapped without anything in it"
        for offset in range(self.block_size):
            there.pop((target, offset), None)
            if (source, offset) in here:
                there[target, offset] = here[source, offset]

    def _copy(self, plan: StepPlan) -> None:
        read = {
            (copy.target, offset): self.slots.get((copy.source, offset))
            for copy in plan.copies
            for offset in range(copy.num_tokens)
        }
        self.copied_tokens += len(read)
        for slot, prefix in read.items():
            assert prefix is not None, f"step {plan.step} copies a slot that was never written"
            self.slots[slot] = prefix

    def _known(self, row: ScheduledReq) -> ScheduledReq:
        """The row with the token in it that it takes from the step before."""
        if row.takes is None:
            return row
        assert unpack_ids(row.token_ids) == [0]
        return row._replace(token_ids=pack_ids([self._last_tokens[row.takes]]))

    def _compute(self, row: ScheduledReq) -> list[Prefix]:
        """Write a row's KV; return the prefix that each of its tokens ends."""
        table = unpack_ids(row.block_table)
        prefix = self._read(table, row.start, self._namespace_of(row.req_id))
        prefixes = []
        for token in unpack_ids(row.token_ids):
            prefix = prefix.then(token)
            prefixes.append(prefix)
            self.slots[self._slot(table, prefix.length - 1)] = prefix
        self.computed_tokens += row.extend_len
        return prefixes

    def _read(self, table: list[int], length: int, namespace: Namespace) -> Prefix:
        """Return the prefix held by the first `length` slots, each of which must agree with it."""
        if length == 0:
            return self._roots.setdefault(namespace, Prefix(namespace, None, 0))
        last = self.slots[self._slot(table, length - 1)]
        assert last.namespace == namespace, f"KV of {last.namespace} is read by {namespace}"
        assert last.length == length, f"slot {length - 1} holds KV for {last.length - 1}"
        expected: Prefix = last
        for position in range(length - 2, -1, -1):
            assert expected.parent is not None
            expected = expected.parent
            assert self.slots[self._slot(table, position)] is expected, f"wrong KV at {position}"
        return last

    def _slot(self, table: list[int], position: int) -> tuple[int, int]:
        return table[position // self.block_size], position % self.block_size
