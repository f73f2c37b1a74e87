"""The real model in float32, twenty prompts in one batch: token for token what transformers gives.

A difference counts only where transformers' own two best logits are further apart than the order
in which floats are summed can move them. What follows such a tie is another text and not compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import torch
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from radixserve.engine.sync_engine import Engine
from tests.kit.engines import TIE, ask, assert_idle, engine_config
from tests.kit.truth import shared_len

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from radixserve.engine.sync_engine import Completion

pytestmark = [pytest.mark.model, pytest.mark.timeout(900)]

OUTPUT_LEN = 64
MAX_PADDING = 48
"""Tokens by which the prompts of one `generate` may differ."""

STORY = (
    "Once upon a time there was a little parrot who lived in the tallest tree of the forest. "
    "Every morning it flew down to the river, told the fish what it had dreamt, and asked them "
    "what they had seen under the water. "
)
FEW_SHOT = (
    "Review: I loved every minute of it.\nSentiment: positive\n\n"
    "Review: The plot made no sense at all.\nSentiment: negative\n\n"
    "Review: A masterpiece, see it twice.\nSentiment: positive\n\n"
)
TEXTS = (
    "The capital of France is",
    "Water boils at",
    "A",
    STORY * 13 + "One day,",
    STORY * 4 + "The fish answered:",
    FEW_SHOT + "Review: I fell asleep after ten minutes.\nSentiment:",
    FEW_SHOT + "Review: The best film of the year.\nSentiment:",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "#include <stdio.h>\n\nint main(void) {\n    for (int i = 0; i < 10; i++) {\n",
    '{"name": "Alice", "age": 31, "children": [{"name":',
    "1, 1, 2, 3, 5, 8, 13, 21, 34,",
    "In 1990 the price was $12.50; in 2018 it was $1,499.99; by 2030",
    "La tour Eiffel a été construite en 1889 pour l'Exposition universelle. Elle est",
    "日本の首都は東京です。中国の首都は",
    "I am so happy today 😀🎉🎉 and my cat 🐈 is",
    "the the the the the the the the the the the the the the the the the the",
)
CHATS = (
    "What is the capital of Italy?",
    "Write a haiku about the sea.",
    "Explain in one sentence why the sky is blue.",
    "Translate to French: I have two cats.",
)


class Step(NamedTuple):
    """What transformers says of one position."""

    token: int
    gap: float
    """How far the best logit is above the second."""


def prompts_of(engine: Engine) -> list[list[int]]:
    plain = [engine.tokenizer.encode(text) for text in TEXTS]
    chats = [[{"role": "user", "content": text}] for text in CHATS]
    return plain + [engine.chat_template.encode(chat) for chat in chats]


def run(folder: Path) -> tuple[list[list[int]], list[Completion], frozenset[int]]:
    """Return the prompts, what our engine makes of them as one batch, and the end ids."""
    engine = Engine(config=engine_config(folder, num_blocks=320, num_threads=2))
    prompts = prompts_of(engine)
    assert len(prompts) == 20
    assert max(map(len, prompts)) > 600
    requests = [ask(prompt, max_tokens=OUTPUT_LEN, ignore_eos=False) for prompt in prompts]
    completions = engine.run(requests)
    assert_idle(engine.core)
    return prompts, completions, engine.core.eos_token_ids


def groups_of(prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the prompts' indices in groups of like lengths, so that little is padded."""
    groups: list[list[int]] = []
    for index in sorted(range(len(prompts)), key=lambda index: len(prompts[index])):
        if not groups or len(prompts[index]) > len(prompts[groups[-1][0]]) + MAX_PADDING:
            groups.append([])
        groups[-1].append(index)
    return groups


def generate(model: Any, prompts: Sequence[Sequence[int]], eos: frozenset[int]) -> list[list[Step]]:
    """Return what `generate` produces for each prompt, padded on the left; ends included."""
    longest, pad = max(map(len, prompts)), min(eos)
    padding = [longest - len(prompt) for prompt in prompts]
    ids = [[pad] * left + list(prompt) for left, prompt in zip(padding, prompts, strict=True)]
    mask = [[0] * left + [1] * (longest - left) for left in padding]
    made = model.generate(
        torch.tensor(ids),
        attention_mask=torch.tensor(mask),
        do_sample=False,
        max_new_tokens=OUTPUT_LEN,
        eos_token_id=sorted(eos),
        pad_token_id=pad,
        return_dict_in_generate=True,
        output_logits=True,
    )
    best = torch.stack(made.logits, dim=1).float().topk(2).values
    gaps = (best[..., 0] - best[..., 1]).tolist()
    tokens = made.sequences[:, longest:].tolist()
    return [cut(row, eos) for row in map(steps_of, tokens, gaps)]


def steps_of(tokens: list[int], gaps: list[float]) -> list[Step]:
    return [Step(token, gap) for token, gap in zip(tokens, gaps, strict=True)]


def cut(steps: list[Step], eos: frozenset[int]) -> list[Step]:
    """Return the steps up to and with the first that ends the output."""
    end = next((i for i, step in enumerate(steps, start=1) if step.token in eos), len(steps))
    return steps[:end]


def test_greedy_output_equals_that_of_transformers(real_folder: Path) -> None:
    prompts, completions, eos = run(real_folder)
    model = AutoModelForCausalLM.from_pretrained(real_folder, dtype=torch.float32)
    model.eval()  # type: ignore[no-untyped-call]
    outputs: dict[int, list[Step]] = {}
    with torch.inference_mode():
        for group in groups_of(prompts):
            made = generate(model, [prompts[index] for index in group], eos)
            outputs.update(zip(group, made, strict=True))

    ties, compared = [], 0
    for index, completion in enumerate(completions):
        steps, found = outputs[index], list(completion.token_ids)
        same = shared_len([step.token for step in steps], found)
        compared += same
        if not same == len(steps) == len(found):
            assert same < len(steps), f"prompt {index}: {len(found) - same} tokens too many"
            expected, gap = steps[same]
            assert gap < TIE, f"prompt {index}, token {same}: {found[same:]}, not {expected}"
            ties.append((index, same, gap))
    lengths = sorted(len(completion.token_ids) for completion in completions)
    print(f"{compared} tokens are equal; ties at (prompt, token, gap): {ties}")  # noqa: T201
    print(f"output lengths: {lengths}")  # noqa: T201
    assert compared > OUTPUT_LEN * len(prompts) // 2
