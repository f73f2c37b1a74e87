"""What smaller numbers cost: perplexity of real text, and how long greedy answers stay the same.

Loads the model once for each setting, scores the same worked examples, and goes on from the same
questions. The first setting, float32 in plain torch, is what the others are compared with.

    python -m benchmarks.precision
    python -m benchmarks.precision --texts 100 --settings native int8

The texts are GSM8K's where its file is found (--data).
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from benchmarks.machine import describe_machine
from radixserve.config import AttentionConfig, CacheConfig, EngineConfig, ModelConfig
from radixserve.engine.request import GenerateRequest
from radixserve.engine.sync_engine import Engine
from radixserve.types import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from radixserve.engine.request import TextDelta
    from radixserve.types import ReqId

DEFAULT_DATA = Path(__file__).parents[2] / "shared/data/few_shot/gsm8k.jsonl.gz"


@dataclass(frozen=True, slots=True)
class Setting:
    """What is held in how many bits, and who multiplies it."""

    dtype: Literal["float32", "bfloat16"]
    backend: Literal["cpu", "reference"] = "cpu"
    quantization: Literal["none", "int8"] = "none"
    kv_cache_dtype: Literal["auto", "int8"] = "auto"

    def config(self) -> EngineConfig:
        """Return the engine's settings."""
        return EngineConfig(
            model=ModelConfig(dtype=self.dtype, quantization=self.quantization),
            attention=AttentionConfig(backend=self.backend),
            cache=CacheConfig(num_blocks=2048, kv_cache_dtype=self.kv_cache_dtype),
        )


SETTINGS: Mapping[str, Setting] = {
    "torch": Setting("float32", backend="reference"),
    "native": Setting("float32"),
    "bfloat16": Setting("bfloat16"),
    "int8-kv": Setting("bfloat16", kv_cache_dtype="int8"),
    "int8": Setting("bfloat16", quantization="int8"),
    "int8-both": Setting("bfloat16", quantization="int8", kv_cache_dtype="int8"),
}
"""KV is held as the weights' dtype says, but int8 is of the weights only, int8-kv of KV only."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one setting made of the texts."""

    logprobs: tuple[float, ...]
    """Of each token of the texts but the first ones."""
    answers: tuple[tuple[int, ...], ...]

    @property
    def perplexity(self) -> float:
        """exp of the mean negative log-probability."""
        return math.exp(-sum(self.logprobs) / len(self.logprobs))


def measure(engine: Engine, texts: Sequence[tuple[str, str]], max_tokens: int) -> Outcome:
    """Score the worked examples, and answer their questions greedily."""
    scored = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    greedy = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    encode = engine.tokenizer.encode
    wholes = [encode(f"Question: {question}\nAnswer: {answer}") for question, answer in texts]
    asked = [encode(f"Question: {question}\nAnswer:") for question, _ in texts]
    told = _run_all(engine, wholes, scored)
    answers = _run_all(engine, asked, greedy)
    logprobs = [one.logprob for delta in told for one in delta.prompt_logprobs]
    return Outcome(tuple(logprobs), tuple(delta.token_ids for delta in answers))


def _run_all(
    engine: Engine, prompts: Sequence[Sequence[int]], params: SamplingParams
) -> list[TextDelta]:
    """Return, for each prompt, one delta that says what all of its said."""
    names = [engine.add(GenerateRequest(prompt_ids=ids, params=params)) for ids in prompts]
    merged: dict[ReqId, TextDelta] = {}
    while engine.has_work:
        for event in engine.step():
            assert event.error is None
            before = merged.get(event.req_id)
            merged[event.req_id] = before.merged_with(event.delta) if before else event.delta
    return [merged[name] for name in names]


def same_len(left: Sequence[int], right: Sequence[int]) -> int:
    """Return how many leading tokens two answers have in common."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(left), len(right)))


def load_texts(path: Path, count: int) -> list[tuple[str, str]]:
    """Return (question, answer) pairs.

    Raises:
        FileNotFoundError: the file is not there.
    """
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return [(row["question"], row["answer"]) for row in rows if row["split"] == "test"][:count]


def print_row(name: str, found: Outcome, base: Outcome) -> None:
    """Print one setting beside the first."""
    shared = [same_len(*pair) for pair in zip(found.answers, base.answers, strict=True)]
    whole = sum(a == b for a, b in zip(found.answers, base.answers, strict=True))
    agreed = sum(shared) / sum(map(len, base.answers))
    change = found.perplexity / base.perplexity - 1
    worst = max(abs(a - b) for a, b in zip(found.logprobs, base.logprobs, strict=True))
    print(
        f"{name:10}{found.perplexity:12.4f}{change:+10.3%}{worst:16.2g}"
        f"{whole:8} of {len(found.answers)}{agreed:16.1%}"
    )


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--settings", nargs="*", choices=SETTINGS, help="besides torch; all if none"
    )
    parser.add_argument("--texts", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--data", type=Path, default=DEFAULT_DATA, help="gsm8k.jsonl.gz")
    return parser.parse_args()


def main() -> None:
    """Run and report."""
    args = parse_args()
    texts = load_texts(args.data, args.texts)
    print(describe_machine())
    print(f"{len(texts)} of GSM8K's test questions, {args.max_tokens} greedy tokens each\n")
    print(
        f"{'':10}{'perplexity':>12}{'change':>10}{'worst log-prob':>16}"
        f"{'equal answers':>14}{'equal tokens':>15}"
    )
    base: Outcome | None = None
    for name in dict.fromkeys(["torch", *(args.settings or SETTINGS)]):
        found = measure(Engine(config=SETTINGS[name].config()), texts, args.max_tokens)
        base = base or found
        print_row(name, found, base)


if __name__ == "__main__":
    main()
