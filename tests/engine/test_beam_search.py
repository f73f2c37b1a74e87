"""Beam search: the sequences that transformers finds, at one computed token a beam and step."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from radixserve.engine.async_engine import AsyncEngine
from radixserve.engine.beam_search import BeamSearchResult, beam_search
from radixserve.engine.beams import BeamParams
from radixserve.errors import InvalidRequestError
from radixserve.types import FinishReason
from tests.engine.test_same_tokens_as_transformers import CHATS, TEXTS
from tests.kit.engines import ask, assert_idle, engine_config, until

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tests.engine.conftest import StartEngine

WIDTH = 4
OUTPUT_LEN = 64
TIE = 1e-4
"""Scores closer than this may be ordered either way by the order in which floats are summed."""


def random_prompt(first: int, length: int) -> list[int]:
    return [3 + (first * 37 + at * 11) % 300 for at in range(length)]


def transformers_beams(
    model: Any, prompt: Sequence[int], eos: int, **settings: Any
) -> list[tuple[list[int], float]]:
    """Return the sequences and scores that transformers finds, best first."""
    ids = torch.tensor([list(prompt)])
    with torch.inference_mode():
        found = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            num_return_sequences=settings["num_beams"],
            return_dict_in_generate=True,
            output_scores=True,
            eos_token_id=eos,
            pad_token_id=0,
            **settings,
        )
    outputs = found.sequences[:, len(prompt) :].tolist()
    return [
        (cut_after(output, eos), score)
        for output, score in zip(outputs, found.sequences_scores.tolist(), strict=True)
    ]


def without_padding(vocab_size: int) -> Callable[..., None]:
    """Return a hook: ids that only pad the head have no probability, as in the engine."""

    def mask(module: Any, args: Any, output: Any) -> None:
        output.logits[..., vocab_size:] = -torch.inf

    return mask


def cut_after(tokens: list[int], eos: int) -> list[int]:
    return tokens[: tokens.index(eos) + 1] if eos in tokens else tokens


def assert_same(result: BeamSearchResult, expected: Sequence[tuple[list[int], float]]) -> int:
    """The same sequences with the same scores; return how many places scores could not decide."""
    ties = 0
    for hypothesis, (tokens, score) in zip(result.hypotheses, expected, strict=True):
        assert hypothesis.score == pytest.approx(score, abs=TIE)
        if list(hypothesis.tokens) != tokens:
            others = [s for t, s in expected if t == list(hypothesis.tokens)]
            assert others
            assert others[0] == pytest.approx(score, abs=TIE)
            ties += 1
    return ties


@pytest.mark.parametrize("early_stopping", [False, True, "never"])
@pytest.mark.parametrize("length_penalty", [1.0, 0.0, 2.0, -1.0])
async def test_a_tiny_models_beams_are_those_of_transformers(
    folder: Path, start_engine: StartEngine, early_stopping: bool | str, length_penalty: float
) -> None:
    engine = await start_engine(block_size=4)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.register_forward_hook(without_padding(engine.info.vocab_size))
    for first, length in ((1, 3), (2, 9), (3, 16)):
        prompt = random_prompt(first, length)
        # A stop token that comes up often: the likeliest one after the prompt.
        with torch.inference_mode():
            eos = int(model(torch.tensor([prompt])).logits[0, -1].topk(6).indices[5])
        expected = transformers_beams(
            model,
            prompt,
            eos,
            num_beams=3,
            max_new_tokens=12,
            early_stopping=early_stopping,
            length_penalty=length_penalty,
        )
        params = BeamParams(
            width=3,
            max_tokens=12,
            stop_token_ids=frozenset([eos]),
            length_penalty=length_penalty,
            early_stopping=early_stopping,  # type: ignore[arg-type]
        )

        result = await beam_search(engine, ask(prompt), params)

        assert_same(result, expected)


@pytest.mark.model
@pytest.mark.timeout(900)
async def test_the_real_models_beams_are_those_of_transformers(real_folder: Path) -> None:
    engine = AsyncEngine.from_config(engine_config(real_folder, num_threads=2))
    plain = [engine.tokenizer.encode(text) for text in (*TEXTS[:3], *TEXTS[7:12])]
    chats = [engine.chat_template.encode([{"role": "user", "content": text}]) for text in CHATS[:2]]
    prompts = plain + chats
    eos = min(engine.eos_token_ids)
    params = BeamParams(width=WIDTH, max_tokens=OUTPUT_LEN, stop_token_ids=frozenset([eos]))
    model = AutoModelForCausalLM.from_pretrained(real_folder, dtype=torch.float32)
    await engine.start()
    try:
        results = await asyncio.gather(
            *(beam_search(engine, ask(prompt), params) for prompt in prompts)
        )
        await until(lambda: not engine.core.has_work)
        assert_idle(engine.core)
    finally:
        await engine.stop()
    assert len(results) == 10

    ties = 0
    for prompt, result in zip(prompts, results, strict=True):
        expected = transformers_beams(
            model, prompt, eos, num_beams=WIDTH, max_new_tokens=OUTPUT_LEN
        )
        ties += assert_same(result, expected)
    print(f"{ties} ties")  # noqa: T201


@pytest.mark.parametrize("prompt_len", [15, 16, 17, 40])
async def test_a_step_computes_one_token_a_beam_and_copies_one_block_at_most(
    start_engine: StartEngine, prompt_len: int
) -> None:
    engine = await start_engine(block_size=16, num_blocks=64)
    params = BeamParams(width=WIDTH, max_tokens=20)

    result = await beam_search(engine, ask(random_prompt(5, prompt_len)), params)

    assert result.steps == 20
    assert result.computed_tokens == WIDTH * 19
    assert [h.finish_reason for h in result.hypotheses] == [FinishReason.LENGTH] * WIDTH
    await until(lambda: not engine.core.has_work)
    assert_idle(engine.core)


async def test_beams_survive_a_pool_that_is_too_small_to_keep_their_fork_points(
    start_engine: StartEngine,
) -> None:
    prompt = random_prompt(7, 18)
    params = BeamParams(width=WIDTH, max_tokens=10)
    roomy = await start_engine(block_size=4)
    expected = await beam_search(roomy, ask(prompt), params)
    tight = await start_engine(block_size=4, num_blocks=8)

    result = await beam_search(tight, ask(prompt), params)

    assert [h.tokens for h in result.hypotheses] == [h.tokens for h in expected.hypotheses]
    assert result.computed_tokens > expected.computed_tokens


async def test_a_search_that_is_cancelled_leaves_nothing_behind(start_engine: StartEngine) -> None:
    engine = await start_engine(block_size=4)
    params = BeamParams(width=WIDTH, max_tokens=200)
    task = asyncio.create_task(beam_search(engine, ask(random_prompt(9, 30)), params))
    await until(lambda: engine.stats().output_tokens > 20)

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    await until(lambda: not engine.core.has_work)
    assert_idle(engine.core)


@pytest.mark.parametrize("width", [0, 10**6])
async def test_a_width_that_makes_no_sense_is_refused(
    start_engine: StartEngine, width: int
) -> None:
    engine = await start_engine()
    with pytest.raises(InvalidRequestError) as refused:
        await beam_search(engine, ask([5, 6]), BeamParams(width=width, max_tokens=2))
    assert refused.value.param == "beam_width"


async def test_stop_tokens_come_only_after_the_least_length(start_engine: StartEngine) -> None:
    engine = await start_engine()
    everything = frozenset(range(20, 120))
    params = BeamParams(width=2, max_tokens=12, min_tokens=5, stop_token_ids=everything)

    result = await beam_search(engine, ask(random_prompt(2, 6)), params)

    for hypothesis in result.hypotheses:
        assert len(hypothesis.tokens) > 5
        assert not everything.intersection(hypothesis.tokens[:5])


async def test_a_search_under_way_does_not_wait_again_for_those_behind_it(
    start_engine: StartEngine,
) -> None:
    """Each of its steps is a request: it waits for a seat, not for what arrived before it did."""
    engine = await start_engine(block_size=4, max_num_seqs=4)
    search = asyncio.create_task(
        beam_search(engine, ask(random_prompt(1, 9)), BeamParams(width=2, max_tokens=8))
    )
    await until(lambda: engine.stats().num_running > 0)
    streams = [engine.submit(ask(random_prompt(first, 9), max_tokens=4)) for first in range(2, 150)]
    async with AsyncExitStack() as stack:
        for stream in streams:
            await stack.enter_async_context(stream)
        await search
        assert engine.stats().num_waiting > len(streams) // 2
