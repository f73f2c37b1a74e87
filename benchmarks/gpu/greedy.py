"""Greedy answers of the whole runtime, graphs included, judged by the same model in float32."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from benchmarks.gpu.batches import BLOCK_SIZE, new_pool, step
from benchmarks.gpu.row import Row, at_most
from benchmarks.gpu.subject import load_pair
from radixserve.attention.build import build_metadata
from radixserve.attention.reference import ReferenceAttention
from radixserve.core.plan import StepPlan
from radixserve.runtime.kv_cache import KVCache
from radixserve.types import pack_ids

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.gpu.rig import Rig
    from benchmarks.gpu.subject import Pair
    from radixserve.models.loader import LoadedModel

TOLERANCE = 0.5
"""How much likelier, in nats, the best token may be in float32 than the one that was chosen in
bfloat16: texts part where two tokens are nearly alike, and from there on they are other texts."""


class GreedySection:
    """How far the device's tokens are from the best ones, each after the tokens before it."""

    name = "greedy text"

    def run(self, rig: Rig) -> Iterator[Row]:
        """Yield the largest gap, and the share of tokens that are the best."""
        pair = load_pair(rig)
        answers = answer(rig, pair)
        gaps = [
            gap
            for prompt, tokens in zip(pair.prompts, answers, strict=True)
            for gap in gaps_of(pair.exact, prompt, tokens)
        ]
        note = f"{pair.name}, {len(answers)} prompts of {rig.sizes.output_len} tokens"
        yield at_most("best token's lead over the chosen one", max(gaps), "nat", TOLERANCE)
        share = sum(gap == 0 for gap in gaps) / len(gaps)
        yield Row(what="chosen tokens that are the best in float32", value=share, note=note)


def answer(rig: Rig, pair: Pair) -> list[list[int]]:
    """Return the greedy answer to each prompt: one step of prompts, then decodes together."""
    length = max(map(len, pair.prompts)) + rig.sizes.output_len
    blocks = -(-length // BLOCK_SIZE)
    rows = range(len(pair.prompts))
    tables = [list(range(row * blocks, (row + 1) * blocks)) for row in rows]
    pool = new_pool(rig, pair.fast.spec, len(rows) * blocks)
    launcher = rig.launcher(pair.fast, pool, bucket=len(rows))
    answers: list[list[int]] = [[] for _ in rows]
    for n in range(rig.sizes.output_len):
        shares = []
        for row in rows:
            seen = [*pair.prompts[row], *answers[row]]
            start = 0 if n == 0 else len(seen) - 1
            shares.append(step(seen[start:], start, tables[row], row))
        result = launcher.launch(StepPlan(n + 1, tuple(shares))).result()
        for row, token in enumerate(result.next_tokens):
            if token is None:
                raise RuntimeError(f"row {row} has no token: {result.row_errors.get(row)}")
            answers[row].append(token)
    return answers


def gaps_of(exact: LoadedModel, prompt: Sequence[int], tokens: Sequence[int]) -> list[float]:
    """Return by how much the best token leads over each of `tokens`; 0 where it is the best."""
    ids = [*prompt, *tokens]
    num_blocks = -(-len(ids) // BLOCK_SIZE)
    pool = KVCache.allocate(exact.spec, num_blocks, BLOCK_SIZE, torch.float32)
    attention = ReferenceAttention(pool.layers, num_qo_heads=exact.spec.num_qo_heads)
    metadata = build_metadata(
        qo_lens=[len(ids)],
        starts=[0],
        tables=[pack_ids(range(num_blocks))],
        block_size=BLOCK_SIZE,
    )
    with torch.inference_mode():
        attention.plan(metadata)
        hidden = exact.model(torch.tensor(ids), metadata.positions, attention)
        logits = exact.model.compute_logits(hidden[len(prompt) - 1 : -1])
    chosen = logits.gather(1, torch.tensor(tokens)[:, None]).squeeze(1)
    gaps: list[float] = (logits.amax(1) - chosen).tolist()
    return gaps
