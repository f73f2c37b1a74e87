"""Structured output over public schemas: what is accepted, what is refused, what comes out.

Compiles every schema, walks each accepted one at random a few times (uniformly among the allowed
tokens, with some haste towards the end) and validates each finished output with `jsonschema`.
Prints shares, reasons, and the time of compilations and masks. Exits with 1 if any output is
invalid or too few schemas are accepted.

    python -m benchmarks.structured
    python -m benchmarks.structured --sample 100 --walks 5
    python -m benchmarks.structured --schemas suite --json out.json

The schemas are JSONSchemaBench's (`bench`) and those of the JSON Schema Test Suite (`suite`), where
their files are found (--data).
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import jsonschema
from rich.console import Console
from rich.progress import track

from benchmarks.machine import describe_machine
from benchmarks.random_walk import RandomWalker, compiled
from benchmarks.summary import percentile
from radixserve.config import DEFAULT_MODEL
from radixserve.errors import UnsupportedGrammarError
from radixserve.grammar.compiler import GrammarCompiler
from radixserve.grammar.spec import JsonSchemaSpec
from radixserve.models.source import resolve_model
from radixserve.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from radixserve.types import Grammar

DEFAULT_DATA = Path(__file__).parents[2] / "shared/data/constrained"
FILES = {
    "bench": "jsonschemabench.jsonl.gz",
    "suite": "json_schema_test_suite_2020_12.jsonl.gz",
}
TARGET_ACCEPTED_SHARE = 0.85


@dataclass(slots=True)
class Tally:
    """What happened to the schemas of one file."""

    num_schemas: int = 0
    num_accepted: int = 0
    num_finished: int = 0
    num_cut: int = 0
    num_unjudged: int = 0
    """Outputs for which the validator itself fails: it cannot read the schema."""
    refused: Counter[str] = field(default_factory=Counter)
    limits_met: Counter[str] = field(default_factory=Counter)
    invalid: list[str] = field(default_factory=list)
    compile_s: list[float] = field(default_factory=list)
    mask_s: list[float] = field(default_factory=list)

    @property
    def accepted_share(self) -> float:
        """Of all schemas."""
        return self.num_accepted / self.num_schemas if self.num_schemas else 0.0


class Bench:
    """Compiles, walks and validates.

    Args:
        compiler: Of the vocabulary that is masked.
        walker: Over the same.
        decode: From ids to text.
        num_walks: Outputs for each schema.
        max_tokens: Of one output.
    """

    def __init__(
        self,
        compiler: GrammarCompiler,
        walker: RandomWalker,
        *,
        decode: Callable[[list[int]], str],
        num_walks: int,
        max_tokens: int,
    ) -> None:
        self._compiler = compiler
        self._walker = walker
        self._decode = decode
        self._num_walks = num_walks
        self._max_tokens = max_tokens

    def run(self, schemas: Iterable[Any], tally: Tally) -> Tally:
        """Add what happens to some schemas. Mutates: `tally`."""
        for number, schema in enumerate(schemas):
            tally.num_schemas += 1
            try:
                grammar, seconds = compiled(self._compiler, JsonSchemaSpec.of(schema))
            except UnsupportedGrammarError as refusal:
                tally.refused[reason_of(refusal)] += 1
                continue
            tally.num_accepted += 1
            tally.compile_s.append(seconds)
            for walk in range(self._num_walks):
                self._walk(schema, grammar, Random(1000 * number + walk), tally)
        return tally

    def _walk(self, schema: Any, grammar: Grammar, rng: Random, tally: Tally) -> None:
        walk = self._walker.walk(grammar, rng, max_tokens=self._max_tokens)
        tally.mask_s += walk.mask_s
        if walk.failure is not None:
            tally.limits_met[walk.failure[:60]] += 1
        elif not walk.is_finished:
            tally.num_cut += 1
        else:
            tally.num_finished += 1
            self._judge(schema, self._decode(walk.token_ids), tally)

    def _judge(self, schema: Any, text: str, tally: Tally) -> None:
        try:
            why = fault_of(schema, text)
        except Exception:  # the validator has no name for a schema that it cannot read
            tally.num_unjudged += 1
            return
        if why is not None:
            tally.invalid.append(f"{why}: {text[:200]}  under  {json.dumps(schema)[:200]}")


def fault_of(schema: Any, text: str) -> str | None:
    """Return what is wrong with an output under its schema; None if nothing is."""
    try:
        value = json.loads(text)
    except ValueError as error:
        return f"not JSON ({error})"
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    fault = next(iter(kind(schema).iter_errors(value)), None)
    return None if fault is None else f"{fault.validator}: {fault.message[:100]}"


def reason_of(refusal: UnsupportedGrammarError) -> str:
    """Return a refusal's words without what is different in each."""
    words = refusal.message.split(" (at ")[0].removeprefix("it cannot be enforced: ")
    return words.split("'")[0][:70] if "'" in words else words[:70]


def read_schemas(path: Path, *, sample: int | None, seed: int) -> list[Any]:
    """Return the schemas of a file, or a sample of them."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        schemas = [json.loads(line)["schema"] for line in lines]
    if sample is None or sample >= len(schemas):
        return schemas
    return Random(seed).sample(schemas, sample)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.structured", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--data", type=Path, default=DEFAULT_DATA, metavar="FOLDER")
    parser.add_argument("--schemas", choices=[*FILES, "both"], default="both")
    parser.add_argument(
        "--model", default=DEFAULT_MODEL, help="whose tokenizer (default: %(default)s)"
    )
    parser.add_argument("--sample", type=int, help="so many schemas of each file (default: all)")
    parser.add_argument("--walks", type=int, default=3, help="outputs a schema (%(default)s)")
    parser.add_argument("--max-tokens", type=int, default=200, help="of one output (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 1 if an output is invalid or too few schemas are accepted."""
    args = _parse(arguments)
    console = Console(stderr=False)
    console.print(describe_machine())
    tokenizer = Tokenizer.from_folder(resolve_model(args.model))
    ends = sorted(tokenizer.eos_token_ids)
    bench = Bench(
        GrammarCompiler(tokenizer.backend.to_str(), tokenizer.vocab_size, ends),
        RandomWalker(tokenizer.backend.get_vocab(with_added_tokens=False), ends),
        decode=partial(tokenizer.decode, skip_special_tokens=False),
        num_walks=args.walks,
        max_tokens=args.max_tokens,
    )
    names = list(FILES) if args.schemas == "both" else [args.schemas]
    tallies: dict[str, Tally] = {}
    for name in names:
        schemas = read_schemas(args.data / FILES[name], sample=args.sample, seed=args.seed)
        shown = track(schemas, description=name, console=Console(stderr=True), transient=True)
        tallies[name] = bench.run(shown, Tally())
        _print(console, name, tallies[name])
    accepted = sum(tally.num_accepted for tally in tallies.values())
    share = accepted / sum(tally.num_schemas for tally in tallies.values())
    console.print(f"accepted in all: {share:.1%} (target {TARGET_ACCEPTED_SHARE:.0%})")
    if args.json is not None:
        args.json.write_text(json.dumps({n: _figures(t) for n, t in tallies.items()}, indent=2))
    has_invalid = any(tally.invalid for tally in tallies.values())
    return 1 if has_invalid or share < TARGET_ACCEPTED_SHARE else 0


def _figures(tally: Tally) -> dict[str, Any]:
    return {
        "schemas": tally.num_schemas,
        "accepted": tally.num_accepted,
        "accepted_share": round(tally.accepted_share, 4),
        "outputs_finished": tally.num_finished,
        "outputs_cut": tally.num_cut,
        "outputs_invalid": len(tally.invalid),
        "outputs_unjudged": tally.num_unjudged,
        "limits_met": sum(tally.limits_met.values()),
        "compile_ms_p50": round(percentile(tally.compile_s, 50) * 1e3, 2),
        "compile_ms_p99": round(percentile(tally.compile_s, 99) * 1e3, 2),
        "mask_us_p50": round(percentile(tally.mask_s, 50) * 1e6, 1),
        "mask_us_p99": round(percentile(tally.mask_s, 99) * 1e6, 1),
        "mask_us_max": round(max(tally.mask_s, default=0.0) * 1e6, 1),
    }


def _print(console: Console, name: str, tally: Tally) -> None:
    console.rule(name)
    for key, value in _figures(tally).items():
        console.print(f"{key:20} {value}")
    for title, counts in (("refused", tally.refused), ("limits met", tally.limits_met)):
        for reason, count in counts.most_common(40):
            console.print(f"  {title} {count:4}  {reason}", markup=False)
    for line in tally.invalid[:20]:
        console.print(f"  INVALID {line}", markup=False)


if __name__ == "__main__":
    sys.exit(main())
