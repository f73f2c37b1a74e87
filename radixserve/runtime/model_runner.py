"""`ModelRunner`: a StepPlan in, a StepResult out.

step = runner.begin(plan)       queues the work where the model is
result = step.result()          waits for it
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch

from radixserve.core.plan import SamplingState, ScheduledReq, StepPlan, StepResult
from radixserve.device.transfer import to_device
from radixserve.errors import BackendError, InvariantError, RadixServeError
from radixserve.runtime.batch import build_batch
from radixserve.runtime.forward import EagerForward
from radixserve.runtime.grammar_rows import GrammarRows, masks_by_place
from radixserve.runtime.logprobs import token_logprobs
from radixserve.runtime.sampler import NO_MASKS, KnownTokens, RowError
from radixserve.runtime.step_times import StepTimes
from radixserve.types import ReqId, SamplingParams, pack_ids, unpack_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import Tensor

    from radixserve.attention.backend import AttentionBackend
    from radixserve.models.decoder import Decoder
    from radixserve.runtime.batch import BatchTensors
    from radixserve.runtime.forward import Forward
    from radixserve.runtime.grammar_rows import PendingMasks
    from radixserve.runtime.host_kv import HostKV
    from radixserve.runtime.kv_cache import KVCache
    from radixserve.runtime.sampler import ChosenTokens, StepSampler
    from radixserve.runtime.step_times import Part
    from radixserve.types import TokenId, TokenLogprob

SCORED_ROWS = 64
"""Prompt rows whose logits are held at once: each is as long as the vocabulary."""


class ModelRunner:
    """Runs the model over the KV pool. Keeps nothing about a Req between two plans but what it
    could make again from the plan alone: the states of grammars.

    Args:
        model: The decoder; its KV goes through `attention`.
        kv_cache: The pool that the plans' block ids name.
        attention: A backend built over the layers of `kv_cache`.
        sampler: Chooses the next tokens.
        host_kv: The swap space that the plans' host block ids name; None if nothing is swapped.
        forward: Runs `model`; planned and called each time when None.
        stage: Brings a batch to the device that the model is on; None where that is the host.
    """

    def __init__(
        self,
        model: Decoder,
        kv_cache: KVCache,
        attention: AttentionBackend,
        sampler: StepSampler,
        host_kv: HostKV | None = None,
        *,
        forward: Forward | None = None,
        stage: Callable[[BatchTensors], BatchTensors] | None = None,
    ) -> None:
        self.times = StepTimes()
        self._model = model
        self._kv_cache = kv_cache
        self._forward = forward or EagerForward(model, attention)
        self._stage = stage
        self._sampler = sampler
        self._host_kv = host_kv
        self._grammars = GrammarRows(sampler.vocab_limit)

    def execute(self, plan: StepPlan) -> StepResult:
        """Compute a plan, from its swaps to its tokens; see `begin`."""
        return self.begin(plan).result()

    def begin(self, plan: StepPlan, before: StepUnderWay | None = None) -> StepUnderWay:
        """Make the plan's swaps and copies, compute its tokens, and sample where it says so.

        On a device that works by itself all of that is queued, and nothing is waited for but what
        the host needs: a grammar's masks, and the prompt's log probabilities.

        Logits are computed only for the rows that sample. A row whose logits are not finite fails
        alone and is named in `row_errors`.

        Args:
            plan: The step.
            before: The step that the plan `follows`, whose tokens its rows take.
        Raises:
            BackendError: the forward pass failed; what it wrote to the plan's blocks is void.
            torch.AcceleratorError: the device is lost for this process.
        Mutates: the slots of pool and swap space that the plan's tokens, copies and swaps go to.
        """
        with _failing_as(plan), torch.inference_mode():
            return self._begin(plan, before)

    def kernel_seconds(self) -> dict[str, float]:
        """Return the seconds spent so far in each kind of kernel; empty where nobody counts."""
        return self._model.kernel_seconds()

    def warm_up(self) -> None:
        """Compute one token in block 0, so that what cannot run fails before a port is opened.

        Only for a pool of which no block is in use.

        Raises:
            BackendError: the forward pass failed.
        """
        greedy = SamplingState(SamplingParams(temperature=0.0), output_len=0)
        token = block = pack_ids([0])
        self.execute(StepPlan(0, (ScheduledReq(ReqId("warm-up"), token, 0, block, greedy),)))

    def _begin(self, plan: StepPlan, before: StepUnderWay | None) -> StepUnderWay:
        self.times.lap("hand_over")
        masks = self._grammars.begin(plan)
        self._swap(plan)
        self._kv_cache.copy_blocks(plan.copies)
        if not plan.reqs:
            return StepUnderWay(self, plan, KnownTokens(()))
        batch = self._staged(plan, before)
        self.times.lap("prepare")
        hidden = self._forward(batch)
        self.times.lap(self._part("forward"))
        step = self._choose(plan, batch, hidden, masks)
        self.times.lap("sample")
        return step

    def _staged(self, plan: StepPlan, before: StepUnderWay | None) -> BatchTensors:
        """Return the batch where the model is; tokens that are there already are taken there."""
        batch = build_batch(plan, self._kv_cache.block_size)
        if before is not None:
            batch = replace(batch, token_ids=torch.tensor(before.places(plan)))
        if self._stage is not None:
            batch = self._stage(batch)
        if before is not None:
            batch = replace(batch, token_ids=before.chosen.tokens[batch.token_ids])
        return batch

    def _choose(
        self, plan: StepPlan, batch: BatchTensors, hidden: Tensor, masks: PendingMasks | None
    ) -> StepUnderWay:
        """Choose the next tokens, and tell how likely the prompt's were, where the plan asks."""
        prompt_logprobs = self._prompt_logprobs(plan, batch, hidden)  # before the logits that stay
        states = [req.sampling for req in plan.reqs if req.sampling is not None]
        self.times.lap("sample")
        logits = self._logits(hidden[batch.sample_rows])
        self.times.lap(self._part("logits"))
        allowed = masks_by_place(plan, masks.result()) if masks is not None else NO_MASKS
        return StepUnderWay(
            self,
            plan,
            self._sampler.begin(logits, states, allowed),
            logits=logits if any(s.params.logprobs is not None for s in states) else None,
            has_masks=masks is not None,
            prompt_logprobs=prompt_logprobs,
        )

    def finish(self, step: StepUnderWay) -> StepResult:
        """Wait for a step that was begun here, and return what it found.

        Raises:
            BackendError: it failed; what it wrote to the plan's blocks is void.
        """
        plan = step.plan
        with _failing_as(plan), torch.inference_mode():
            values = step.chosen.result()
            self.times.lap("sample" if self._stage is None else "wait")
            next_tokens: list[TokenId | None] = [None] * len(plan.reqs)
            row_errors: dict[int, str] = {}
            for row, value in zip(step.sampled_rows, values, strict=True):
                if isinstance(value, RowError):
                    row_errors[row] = value.message
                else:
                    next_tokens[row] = value
            result = StepResult(
                plan.step,
                tuple(next_tokens),
                row_errors,
                forced_tokens=self._grammars.advance(plan, next_tokens) if step.has_masks else {},
                logprobs=self._logprobs(step, next_tokens),
                prompt_logprobs=step.prompt_logprobs,
            )
            self.times.lap("sample")
            return result

    def _part(self, part: Part) -> Part:
        """On a device the model's parts are only queued; the time that they take is waited for."""
        return part if self._stage is None else "launch"

    def _logits(self, hidden: Tensor) -> Tensor:
        if not len(hidden):
            return hidden.new_empty((0, 1), dtype=torch.float32)
        return self._model.compute_logits(hidden)

    def _logprobs(
        self, step: StepUnderWay, next_tokens: Sequence[TokenId | None]
    ) -> dict[int, TokenLogprob]:
        """Tell how likely each next token was, for the rows that ask."""
        if step.logits is None:
            return {}
        wanted: list[tuple[int, int, TokenId, int]] = []  # place, row, token, likeliest ones
        for place, row in enumerate(step.sampled_rows):
            sampling, token = step.plan.reqs[row].sampling, next_tokens[row]
            num_top = sampling.params.logprobs if sampling is not None else None
            if num_top is not None and token is not None:
                wanted.append((place, row, token, num_top))
        if not wanted:
            return {}
        places, rows, tokens, nums_top = zip(*wanted, strict=True)
        found = token_logprobs(
            step.logits[to_device(torch.tensor(places), step.logits.device)],
            tokens,
            max(nums_top),
            vocab_limit=self._sampler.vocab_limit,
        )
        return {
            row: logprob._replace(top=logprob.top[:num_top])
            for row, logprob, num_top in zip(rows, found, nums_top, strict=True)
        }

    def _prompt_logprobs(
        self, plan: StepPlan, batch: BatchTensors, hidden: Tensor
    ) -> dict[int, tuple[TokenLogprob, ...]]:
        """Tell how likely the prompt's tokens were, a few rows of logits at a time."""
        told: dict[int, tuple[TokenLogprob, ...]] = {}
        starts = batch.metadata.qo_indptr.tolist()
        for row, req in enumerate(plan.reqs):
            if req.scoring is None:
                continue
            targets = unpack_ids(req.scoring.targets)
            first = starts[row] + req.scoring.first_row
            told[row] = tuple(
                logprob
                for at in range(0, len(targets), SCORED_ROWS)
                for logprob in token_logprobs(
                    self._logits(hidden[first + at : first + min(at + SCORED_ROWS, len(targets))]),
                    targets[at : at + SCORED_ROWS],
                    req.scoring.num_top,
                    vocab_limit=self._sampler.vocab_limit,
                )
            )
        return told

    def _swap(self, plan: StepPlan) -> None:
        """Out before in: a block may be given to somebody else in the step that saves it."""
        if not plan.swap_outs and not plan.swap_ins:
            return
        if self._host_kv is None:
            raise InvariantError(11, f"step {plan.step} swaps, but there is no swap space")
        self._host_kv.save(self._kv_cache, plan.swap_outs)
        self._host_kv.restore(self._kv_cache, plan.swap_ins)


@dataclass(frozen=True, slots=True, eq=False)
class StepUnderWay:
    """A step that a runner has begun."""

    runner: ModelRunner
    plan: StepPlan
    chosen: ChosenTokens
    """Of the rows that sample, in the plan's order."""
    logits: Tensor | None = None
    """[R, vocab], float32; None if no row asks how likely its token was."""
    has_masks: bool = False
    """Whether a row has a grammar."""
    prompt_logprobs: Mapping[int, tuple[TokenLogprob, ...]] = field(default_factory=dict)

    @property
    def sampled_rows(self) -> list[int]:
        """The plan's rows that sample."""
        return [row for row, req in enumerate(self.plan.reqs) if req.sampling is not None]

    def places(self, following: StepPlan) -> list[int]:
        """Return where among the chosen tokens each row of the next plan finds its own.

        Raises:
            InvariantError: a row takes no token, or one that was not sampled (8).
        """
        place_of = {row: place for place, row in enumerate(self.sampled_rows)}
        try:
            return [place_of[req.takes] for req in following.reqs]  # type: ignore[index]
        except KeyError as error:
            why = f"step {following.step} takes row {error}, of which {self.plan.step} samples none"
            raise InvariantError(8, why) from error

    def result(self) -> StepResult:
        """Wait for the result; see `ModelRunner.finish`."""
        return self.runner.finish(self)


@contextmanager
def _failing_as(plan: StepPlan) -> Iterator[None]:
    """Whatever goes wrong with a step is told by its number, but for what is no step's fault: after
    an error of the device, nothing can be computed on it any more."""
    try:
        yield
    except (RadixServeError, torch.AcceleratorError):
        raise
    except Exception as error:
        raise BackendError(f"step {plan.step} failed: {error}") from error
