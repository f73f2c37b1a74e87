"""One request on the real model that can be preempted and resumed as often as one likes."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from radixserve.attention.select import has_kernels, select_backend
from radixserve.core.plan import SamplingState, ScheduledReq, StepPlan
from radixserve.core.preemptor import Preemptor
from radixserve.core.prefix_cache import PrefixCache
from radixserve.core.req import Req, ReqSpec
from radixserve.core.stats import Counters
from radixserve.core.swap_space import SwapSpace
from radixserve.engine.decoder import build_decoder
from radixserve.models.dtype import choose_dtype
from radixserve.models.loader import load_model
from radixserve.models.source import resolve_model
from radixserve.runtime.host_kv import HostKV
from radixserve.runtime.kv_cache import KVCache
from radixserve.runtime.model_runner import ModelRunner
from radixserve.runtime.sampler import Sampler
from radixserve.runtime.swap_costs import measure_swap_costs
from radixserve.types import ID_BYTES, ReqId, SamplingParams, pack_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from radixserve.core.preemption import Method, PreemptionMode

    Clock: TypeAlias = Callable[[], float]

BLOCK_SIZE = 16
CHUNK_LEN = 512
GREEDY = SamplingState(SamplingParams(temperature=0.0), output_len=0)


@dataclass(frozen=True, slots=True)
class Resumption:
    """What one preemption took, in seconds."""

    method: Method
    copy_s: float
    compute_s: float
    """Of the steps up to the next token; 0 if that is an ordinary decode step."""


class Bench:
    """The real model over a pool for one victim, with a swap space as large as the pool."""

    def __init__(self, model: str, dtype: str, *, max_len: int, seed: int, clock: Clock) -> None:
        precision = choose_dtype(dtype, has_kernels=has_kernels("auto"))
        loaded = load_model(resolve_model(model), dtype=precision)
        num_blocks = max_len // BLOCK_SIZE + 8
        self.pool = KVCache.allocate(loaded.spec, num_blocks, BLOCK_SIZE, precision)
        self.host = HostKV.allocate_beside(self.pool, num_blocks)
        heads = loaded.spec.num_qo_heads
        attention = select_backend("auto", self.pool.layers, num_qo_heads=heads)
        sampler = Sampler(loaded.spec.vocab_size)
        decoder = build_decoder(loaded, attention, capacity=max_len)
        self.runner = ModelRunner(decoder, self.pool, attention, sampler, self.host)
        self.runner.warm_up()
        started = time.perf_counter()
        self.costs = measure_swap_costs(self.runner, self.pool, self.host, clock=clock)
        self.measuring_s = time.perf_counter() - started
        self._num_blocks = num_blocks
        self._rng = random.Random(seed)
        self._clock = clock

    def victim(self, length: int) -> Victim:
        """Return a running request of `length` tokens, computed."""
        tokens = [self._rng.randrange(1000, 40_000) for _ in range(length + 1)]
        space = SwapSpace(num_blocks=self._num_blocks, block_size=BLOCK_SIZE, costs=self.costs)
        return Victim(self.runner, tokens, space, clock=self._clock)


class Victim:
    """One running request beside another that will end after having taken some blocks."""

    def __init__(
        self, runner: ModelRunner, tokens: Sequence[int], space: SwapSpace, *, clock: Clock
    ) -> None:
        self._runner = runner
        self._clock = clock
        self._space = space
        self.cache = PrefixCache(num_blocks=space.pool.num_blocks, block_size=BLOCK_SIZE)
        self._elder = self._admitted(_req("elder", [7] * (BLOCK_SIZE - 1), max_tokens=2))
        self._req = self._admitted(_req("victim", tokens, max_tokens=16))
        self._compute()

    @property
    def num_blocks(self) -> int:
        """Blocks that it has in the tree."""
        assert self._req.lease is not None
        return self._req.lease.num_shared

    def decode_s(self) -> float:
        """Return the seconds of an ordinary step: its last token, once more."""
        return self._timed(self._plan(1))

    def _elders_row(self) -> ScheduledReq:
        """The decode that goes on in every step."""
        assert self._elder.lease is not None
        token, table = bytes(self._elder.tokens[-ID_BYTES:]), self._elder.lease.table.tobytes()
        return ScheduledReq(self._elder.req_id, token, self._elder.total_len - 1, table, GREEDY)

    def grow_to(self, tail_len: int) -> None:
        """Decode until the last block has this many computed tokens."""
        assert self._req.lease is not None
        while self._req.computed_len % BLOCK_SIZE < tail_len:
            self._req.append((1000 + tail_len,))
            assert self.cache.extend(self._req.lease, self._req.total_len)
            self._compute()

    def preempt_and_resume(self, mode: PreemptionMode, lost_blocks: int) -> Resumption:
        """Let it give way and come back; return what was done about the KV, and the times.

        Args:
            lost_blocks: Blocks that others take before it resumes, and are known to need.
        """
        self._elder = self._growing_by(lost_blocks)
        preemptor = Preemptor(self.cache, self._space, mode, Counters())
        out = preemptor.preempt(self._req, [self._elder])
        seconds = self._timed(StepPlan(0, (), swap_outs=(out,))) if out else 0.0
        self.cache.evict(lost_blocks)
        match = self.cache.match(bytes(self._req.tokens), self._req.spec.namespace)
        restores = self._space.can_restore(self._req, match)
        self._admitted(self._req)
        back = preemptor.resume(self._req, restores=restores)
        seconds += self._timed(StepPlan(0, (), swap_ins=(back,))) if back else 0.0
        self._space.landed()
        compute_s = self._compute() if self._req.remaining_len > 1 else 0.0
        return Resumption("swap" if out else "recompute", seconds, compute_s)

    def _growing_by(self, blocks: int) -> Req:
        """The other request, with so many blocks of output to go."""
        assert self._elder.lease is not None
        elder = _req("elder", [7] * (BLOCK_SIZE - 1), max_tokens=2 + blocks * BLOCK_SIZE)
        elder.lease = self._elder.lease
        return elder

    def _admitted(self, req: Req) -> Req:
        match = self.cache.match(bytes(req.tokens), req.spec.namespace)
        acquired = self.cache.acquire(match, req.total_len)
        assert acquired is not None
        assert acquired.copy is None
        req.lease, req.computed_len = acquired.lease, acquired.cached_len
        return req

    def _compute(self) -> float:
        """Compute in chunks up to the next token; that one is not kept. Return the seconds."""
        req, seconds = self._req, 0.0
        while True:
            length = min(CHUNK_LEN, req.remaining_len)
            seconds += self._timed(self._plan(length))
            if length == req.remaining_len:
                break
            req.computed_len += length
        assert req.lease is not None
        req.computed_len = req.total_len - 1
        self.cache.commit(req.lease, bytes(req.tokens), req.computed_len)
        return seconds

    def _plan(self, length: int) -> StepPlan:
        req = self._req
        assert req.lease is not None
        start, end = req.computed_len, req.computed_len + length
        row = ScheduledReq(
            req.req_id,
            bytes(req.tokens[start * ID_BYTES : end * ID_BYTES]),
            start,
            req.lease.table.tobytes(),
            GREEDY if end == req.total_len else None,
        )
        return StepPlan(0, (self._elders_row(), row))

    def _timed(self, plan: StepPlan) -> float:
        started = self._clock()
        self._runner.execute(plan)
        return self._clock() - started


def _req(name: str, tokens: Sequence[int], *, max_tokens: int) -> Req:
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    return Req(
        ReqSpec(req_id=ReqId(name), prompt=pack_ids(tokens), params=params),
        arrival=0,
    )
