"""Grammar at run time: masks while the forward pass runs, then the next tokens taken in.

A state is a function of the grammar and the output so far, both of which are in the plan. What is
kept between steps is a cache of states and no more: a Req that was preempted, swapped or away is
brought up to date from its row, and one that is forgotten is followed again from its beginning.
"""

from __future__ import annotations

from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from radixserve.types import RequestFault, pack_ids, unpack_ids

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from radixserve.core.plan import SamplingState, StepPlan
    from radixserve.types import Grammar, GrammarState, PackedIds, ReqId, TokenId

    Mask: TypeAlias = NDArray[np.bool_]
    PendingMasks: TypeAlias = Future[dict[int, Mask | str]]

MAX_STATES = 4096
"""States kept; each is a few hundred kilobytes, tens of megabytes at worst."""

MAX_AWAY_STEPS = 256
"""Steps for which a state is kept whose Req is in none of them."""


@dataclass(slots=True)
class _Followed:
    """A Req's place in its grammar, after the output tokens `output_ids`."""

    grammar: Grammar
    state: GrammarState
    output_ids: PackedIds
    last_step: int

    def take(self, tokens: Sequence[TokenId]) -> bool:
        """Go on by some tokens, with the bytes that the next step's row will have for them.

        Returns: whether the grammar allows them; they are not counted as taken otherwise.
        """
        if not self.state.accept(tokens):
            return False
        self.output_ids += pack_ids(tokens)
        return True


class GrammarRows:
    """The grammar side of a runner.

    Args:
        vocab_limit: Ids from here on are never chosen.
    """

    def __init__(self, vocab_limit: int) -> None:
        self._vocab_limit = vocab_limit
        self._followed: OrderedDict[ReqId, _Followed] = OrderedDict()
        """The Reqs seen last at the end."""
        self._worker: ThreadPoolExecutor | None = None

    def __len__(self) -> int:
        return len(self._followed)

    def begin(self, plan: StepPlan) -> PendingMasks | None:
        """Start to make the masks of a plan's rows, in a thread of their own.

        Returns: row -> which ids may come, or why nothing may (a `RequestFault` where the
            request is the cause); None if no row has a grammar.
            Nothing else of this object may be called before it is done.
        """
        rows = [
            row
            for row, req in enumerate(plan.reqs)
            if req.sampling is not None and req.sampling.params.grammar is not None
        ]
        if not rows:
            return None
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, thread_name_prefix="radixserve-grammar")
        return self._worker.submit(self._masks, plan, rows)

    def advance(
        self, plan: StepPlan, next_tokens: Sequence[TokenId | None]
    ) -> dict[int, tuple[TokenId, ...]]:
        """Take in the tokens that were chosen.

        Returns: row -> the tokens that must follow, where the Req takes them at once.
        Mutates: the states of the plan's Reqs.
        """
        forced: dict[int, tuple[TokenId, ...]] = {}
        for row, (req, token) in enumerate(zip(plan.reqs, next_tokens, strict=True)):
            sampling = req.sampling
            if token is None or sampling is None or sampling.params.grammar is None:
                continue
            followed = self._followed[req.req_id]
            if token not in sampling.params.stop_token_ids and followed.take((token,)):
                forced[row] = _forced_after(followed, sampling)
        return {row: tokens for row, tokens in forced.items() if tokens}

    # -- inside --------------------------------------------------------------------------------

    def _masks(self, plan: StepPlan, rows: Sequence[int]) -> dict[int, Mask | str]:
        masks: dict[int, Mask | str] = {}
        for row in rows:
            req = plan.reqs[row]
            assert req.sampling is not None
            followed = self._follow(req.req_id, req.sampling, plan.step)
            masks[row] = _mask_of(followed, req.sampling, self._vocab_limit)
        self._forget(plan.step)
        return masks

    def _follow(self, req_id: ReqId, sampling: SamplingState, step: int) -> _Followed:
        """Return a Req's state after all of its output, made anew if need be."""
        grammar, output_ids = sampling.params.grammar, sampling.output_ids
        assert grammar is not None
        followed = self._followed.get(req_id)
        if (
            followed is None
            or followed.grammar is not grammar
            or not output_ids.startswith(followed.output_ids)
        ):
            followed = _Followed(grammar, grammar.start(), b"", step)
            self._followed[req_id] = followed
        followed.take(unpack_ids(memoryview(output_ids)[len(followed.output_ids) :]))
        followed.last_step = step
        self._followed.move_to_end(req_id)
        return followed

    def _forget(self, step: int) -> None:
        """Let go of the states that nobody has asked for in a while, and of what is too many."""
        while self._followed:
            req_id, followed = next(iter(self._followed.items()))
            is_away = step - followed.last_step > MAX_AWAY_STEPS
            if not is_away and len(self._followed) <= MAX_STATES:
                return
            del self._followed[req_id]


def _forced_after(followed: _Followed, sampling: SamplingState) -> tuple[TokenId, ...]:
    """Take and return the tokens after the one just chosen that leave no choice, the end included.

    A Req whose log-probabilities are asked for has them one by one: each needs its logits.
    """
    params = sampling.params
    room = params.max_tokens - sampling.output_len - 1
    if params.logprobs is not None:
        return ()
    forced = tuple(followed.state.forced()[: max(room, 0)])
    if not followed.take(forced):
        return ()  # a limit is met: the next step tells
    if len(forced) == room or not followed.state.is_complete:
        return forced
    return forced + _ends(followed.grammar, params.stop_token_ids)


def _ends(grammar: Grammar, stops: frozenset[TokenId]) -> tuple[TokenId, ...]:
    """Return the token that ends a complete output, if it ends this one."""
    end = grammar.end_token_id
    return (end,) if end is not None and end in stops else ()


def _mask_of(followed: _Followed, sampling: SamplingState, vocab_limit: int) -> Mask | str:
    """Return which ids may come next: those that the grammar allows, and the end where it may be.

    A caller's own stop token that is a part of the text ends the output there only if nothing
    else may come.
    """
    state, stops = followed.state, _within(sampling.params.stop_token_ids, vocab_limit)
    if state.failure is None and followed.output_ids != sampling.output_ids:
        return "the output so far does not follow the grammar"
    if state.is_complete:
        ends = _ends(followed.grammar, sampling.params.stop_token_ids)
        return _only(ends or stops, vocab_limit)
    words = state.allowed()
    if state.failure is not None:
        return RequestFault(f"the grammar cannot be followed any further: {state.failure}")
    bits = np.unpackbits(np.frombuffer(words, dtype=np.uint8), bitorder="little")
    mask: Mask = np.zeros(vocab_limit, dtype=np.bool_)
    mask[: len(bits)] = bits[:vocab_limit]
    with_stops = mask.copy()
    mask[stops] = state.may_end
    if mask.any():
        return mask
    if with_stops.any():
        return with_stops
    return RequestFault("the grammar cannot be followed any further: no token of the model fits")


def _only(tokens: Sequence[TokenId], vocab_limit: int) -> Mask:
    mask: Mask = np.zeros(vocab_limit, dtype=np.bool_)
    mask[list(tokens)] = True
    return mask


def _within(tokens: frozenset[TokenId], vocab_limit: int) -> list[TokenId]:
    return sorted(token for token in tokens if token < vocab_limit)


def masks_by_place(plan: StepPlan, masks: Mapping[int, Mask | str]) -> dict[int, Mask | str]:
    """Return masks by their place among the rows that sample, for the sampler."""
    sampled = [row for row, req in enumerate(plan.reqs) if req.sampling is not None]
    return {place: masks[row] for place, row in enumerate(sampled) if row in masks}
