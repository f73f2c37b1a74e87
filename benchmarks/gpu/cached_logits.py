"""Logits over cached blocks against those of the whole prompt computed at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from benchmarks.gpu.batches import BLOCK_SIZE, new_pool, with_levels
from benchmarks.gpu.row import at_most
from benchmarks.gpu.subject import load_pair
from radixserve.attention.build import build_metadata
from radixserve.types import pack_ids

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from benchmarks.gpu.rig import Rig
    from benchmarks.gpu.row import Row
    from radixserve.attention.backend import AttentionBackend
    from radixserve.models.loader import LoadedModel

TOLERANCE = 0.25
"""Of a log-probability, over the likeliest tokens: the same sums in bfloat16, in another order."""

NUM_LIKELIEST = 20
SHARED_LEN = 32 * BLOCK_SIZE
NUM_SHARERS = 8
OWN_LEN = 7


class CachedLogitsSection:
    """How far what a request reads from the cache moves its next token's log-probabilities."""

    name = "cached = uncached"

    def run(self, rig: Rig) -> Iterator[Row]:
        """Yield the largest difference for each way in which blocks are reused."""
        pair = load_pair(rig)
        run = _Run(rig, pair.fast)
        uncached = [run.whole(row) for row in range(NUM_SHARERS)]
        for what, cached in (
            ("rest of a prompt over its cached beginning", run.rest(0)),
            ("the same, cut within a block", run.rest(5)),
            ("sharers of one beginning, flat", run.sharers(has_levels=False)),
            ("sharers of one beginning, by levels", run.sharers(has_levels=True)),
        ):
            pairs = zip(uncached, cached, strict=False)
            worst = max(_difference(whole, part) for whole, part in pairs)
            note = f"{pair.name}, the {NUM_LIKELIEST} likeliest tokens"
            yield at_most(what, worst, "nat", TOLERANCE, note=note)


class _Run:
    """A model over a pool in which prompts of one beginning lie."""

    def __init__(self, rig: Rig, loaded: LoadedModel) -> None:
        self._rig, self._model = rig, loaded.model
        self._vocab_size = loaded.spec.vocab_size
        blocks = SHARED_LEN // BLOCK_SIZE
        self._shared = list(range(blocks))
        self._spare = list(range(blocks, 2 * blocks))
        self._own = [2 * blocks + row for row in range(NUM_SHARERS + 1)]
        pool = new_pool(rig, loaded.spec, 2 * blocks + NUM_SHARERS + 1)
        self._attention: AttentionBackend = rig.attention(pool.layers, loaded.spec.num_qo_heads)

    def whole(self, row: int) -> Tensor:
        """Compute a prompt at once, into blocks of its own."""
        [logits] = self._step([self._prompt(row)], [0], [[*self._spare, self._own[-1]]])
        return logits

    def rest(self, cut: int) -> list[Tensor]:
        """Compute prompt 0 in two steps, the first `cut` tokens beyond whole blocks."""
        prompt, table = self._prompt(0), [*self._shared, self._own[0]]
        first = SHARED_LEN - BLOCK_SIZE + cut
        self._step([prompt[:first]], [0], [table])
        return self._step([prompt[first:]], [first], [table])

    def sharers(self, *, has_levels: bool) -> list[Tensor]:
        """Compute the prompts' own ends together, over their common blocks."""
        self._step([self._prompt(0)[:SHARED_LEN]], [0], [self._shared])
        rows = range(NUM_SHARERS)
        return self._step(
            [self._prompt(row)[SHARED_LEN:] for row in rows],
            [SHARED_LEN] * NUM_SHARERS,
            [[*self._shared, self._own[row]] for row in rows],
            has_levels=has_levels,
        )

    def _prompt(self, row: int) -> list[int]:
        own = [(7 * row * row + 29 * i + 3) % self._vocab_size for i in range(OWN_LEN)]
        return [(13 * i * i + 7) % self._vocab_size for i in range(SHARED_LEN)] + own

    def _step(
        self,
        tokens: Sequence[Sequence[int]],
        starts: Sequence[int],
        tables: Sequence[Sequence[int]],
        *,
        has_levels: bool = False,
    ) -> list[Tensor]:
        """Return the log-probabilities after each request's last token."""
        metadata = build_metadata(
            qo_lens=[len(ids) for ids in tokens],
            starts=starts,
            tables=[pack_ids(table) for table in tables],
            block_size=BLOCK_SIZE,
        )
        if has_levels:
            metadata = with_levels(metadata)
            assert metadata.levels, "the batch was meant to be attended to by levels"
        device = self._rig.device
        flat = torch.tensor([i for ids in tokens for i in ids], device=device)
        last_rows = (metadata.qo_indptr[1:].long() - 1).to(device)
        with torch.inference_mode():
            self._attention.plan(metadata)
            hidden = self._model(flat, metadata.positions.to(device), self._attention)
            logits = self._model.compute_logits(hidden[last_rows])
        return list(logits.log_softmax(-1).cpu())


def _difference(whole: Tensor, part: Tensor) -> float:
    if not part.isfinite().all():
        return float("inf")
    likeliest = whole.topk(NUM_LIKELIEST).indices
    return float((whole[likeliest] - part[likeliest]).abs().max())
