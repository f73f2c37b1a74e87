"""The same tokens come out however much of the prompt was in the pool, and however it got there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from radixserve.core.plan import BlockCopy, SamplingState, ScheduledReq, StepPlan
from radixserve.types import BlockId, ReqId, SamplingParams, TokenId, pack_ids

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve.runtime.model_runner import ModelRunner
    from tests.runtime.conftest import MakeRunner

PROMPT = [(37 * i * i + 11 * i + 5) % 512 for i in range(53)]
OTHER = [(29 * i * i + 3 * i + 9) % 512 for i in range(40)]
OUTPUT_LEN = 12

PARAMS = [SamplingParams(temperature=0.0), SamplingParams(temperature=1.5, top_p=0.95, seed=42)]
IDS = ["greedy", "seeded"]


class Driven:
    """One sequence of tokens and the blocks that hold its KV."""

    def __init__(self, blocks: Sequence[int], params: SamplingParams) -> None:
        self.blocks = blocks
        self.params = params
        self.output: list[TokenId] = []

    def share(self, tokens: Sequence[int], start: int, *, is_last: bool = True) -> ScheduledReq:
        sampling = SamplingState(self.params, len(self.output)) if is_last else None
        blocks = pack_ids(self.blocks)
        return ScheduledReq(ReqId("r"), pack_ids(tokens), start, blocks, sampling)

    def prefill(
        self, runner: ModelRunner, chunk_len: int, start: int = 0, copies: Sequence[BlockCopy] = ()
    ) -> None:
        """Compute the prompt from `start` on in chunks; the last one gives the first token."""
        for begin in range(start, len(PROMPT), chunk_len):
            end = min(begin + chunk_len, len(PROMPT))
            req = self.share(PROMPT[begin:end], begin, is_last=end == len(PROMPT))
            result = runner.execute(StepPlan(0, (req,), tuple(copies)))
            copies = ()
        self.take(result.next_tokens[0])

    def next_share(self) -> ScheduledReq:
        return self.share(self.output[-1:], len(PROMPT) + len(self.output) - 1)

    def decode(self, runner: ModelRunner) -> list[TokenId]:
        while len(self.output) < OUTPUT_LEN:
            self.take(runner.execute(StepPlan(0, (self.next_share(),))).next_tokens[0])
        return self.output

    def take(self, token: TokenId | None) -> None:
        assert token is not None
        self.output.append(token)


def uncached(
    make_runner: MakeRunner, params: SamplingParams, dtype: torch.dtype = torch.float32
) -> list[TokenId]:
    """Return the tokens that come out when each is computed from the whole text, in one block."""
    output: list[TokenId] = []
    while len(output) < OUTPUT_LEN:
        text = PROMPT + output
        sampling = SamplingState(params, len(output))
        req = ScheduledReq(ReqId("r"), pack_ids(text), 0, pack_ids([0]), sampling)
        (token,) = make_runner(128, dtype).execute(StepPlan(0, (req,))).next_tokens
        assert token is not None
        output.append(token)
    return output


def blocks_for(block_size: int, first: int) -> list[int]:
    """Return blocks enough for a whole sequence, from `first` on, highest id first."""
    count = -(-(len(PROMPT) + OUTPUT_LEN) // block_size)
    return list(range(first, first + count))[::-1]


@pytest.mark.parametrize("params", PARAMS, ids=IDS)
@pytest.mark.parametrize("block_size", [4, 16, 64])
@pytest.mark.parametrize("chunk_len", [1, 3, 16, 64])
def test_chunks_of_any_length_give_the_tokens_of_the_whole_prompt(
    make_runner: MakeRunner, chunk_len: int, block_size: int, params: SamplingParams
) -> None:
    runner = make_runner(block_size)
    sequence = Driven(blocks_for(block_size, 3), params)

    sequence.prefill(runner, chunk_len)

    assert sequence.decode(runner) == uncached(make_runner, params)


@pytest.mark.parametrize("params", PARAMS, ids=IDS)
@pytest.mark.parametrize("cached_len", [1, 15, 16, 17, 40, 52])
def test_a_shared_prefix_with_a_copied_partial_block_gives_the_tokens_of_the_whole_prompt(
    make_runner: MakeRunner, cached_len: int, params: SamplingParams
) -> None:
    runner, block_size = make_runner(16), 16
    leader = Driven(blocks_for(block_size, 20), params)
    leader.prefill(runner, 64)
    whole, tail = divmod(cached_len, block_size)
    own = blocks_for(block_size, 40)[whole:]
    follower = Driven([*leader.blocks[:whole], *own], params)
    copies = [BlockCopy(BlockId(leader.blocks[whole]), BlockId(own[0]), tail)] if tail else []

    follower.prefill(runner, 64, start=cached_len, copies=copies)

    expected = uncached(make_runner, params)
    assert follower.decode(runner) == expected
    assert leader.decode(runner) == expected


@pytest.mark.parametrize("params", PARAMS, ids=IDS)
def test_a_batch_of_prefills_and_decodes_gives_the_tokens_of_each_alone(
    make_runner: MakeRunner, params: SamplingParams
) -> None:
    runner = make_runner(16)
    first = Driven(blocks_for(16, 0), params)
    second = Driven(blocks_for(16, 10), params)
    first.prefill(runner, 64)

    for begin in range(0, len(PROMPT), 9):
        is_last = begin + 9 >= len(PROMPT)
        chunk = second.share(PROMPT[begin : begin + 9], begin, is_last=is_last)
        bystander = ScheduledReq(ReqId("b"), pack_ids(OTHER), 0, pack_ids([30, 31, 32]), None)
        result = runner.execute(StepPlan(0, (chunk, bystander, first.next_share())))
        first.take(result.next_tokens[2])
    second.take(result.next_tokens[0])

    expected = uncached(make_runner, params)
    assert first.decode(runner) == expected
    assert second.decode(runner) == expected


@pytest.mark.parametrize("params", PARAMS, ids=IDS)
@pytest.mark.parametrize(("block_size", "chunk_len"), [(4, 1), (16, 3), (16, 64)])
def test_int8_kv_gives_the_tokens_of_its_own_whole_prompt(
    make_runner: MakeRunner, block_size: int, chunk_len: int, params: SamplingParams
) -> None:
    runner = make_runner(block_size, torch.int8)
    sequence = Driven(blocks_for(block_size, 3), params)

    sequence.prefill(runner, chunk_len)

    assert sequence.decode(runner) == uncached(make_runner, params, torch.int8)
