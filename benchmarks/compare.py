"""Several servers under the same load, in turn, A B A B, and how they compare.

    python -m benchmarks.compare \\
        --server 'radixserve=python -m radixserve serve --port {port}' \\
        --server 'peer=VLLM_CPU_KVCACHE_SPACE=2 vllm serve ./model --port {port}' \\
        --workloads w1 w3 --concurrency 1 8 32 --num-prompts 12 0 0 --rounds 2

Each server is started, awaited, loaded and stopped by itself, once a round, so that one does not
slow another down. All get the same prompts; every round and every concurrency has prompts of its
own, so that each run begins cold on every server alike. A ratio is against the first server: the
median of the rounds' own ratios; above 1 is better, for latencies too. Figures are medians over the
rounds, spread is their largest throughput less their smallest.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.machine import describe_machine
from benchmarks.served_peer import Peer, serving
from radixserve.bench.presets import PRESETS
from radixserve.bench.run import LoadSettings, ServerSettings, run_against_server
from radixserve.bench.summary import Metric, summarise
from radixserve.errors import RadixServeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from radixserve.bench.summary import Summary

HEADER = (
    "workload",
    "c",
    "server",
    "out tok/s",
    "ratio",
    "TTFT med ms",
    "ratio",
    "TPOT med ms",
    "ratio",
    "cached",
    "errors",
    "spread",
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of one server; latencies are medians in milliseconds."""

    server: str
    workload: str
    concurrency: int
    round: int
    form: str
    output_tokens_per_s: float
    ttft_ms: float
    ttft_p99_ms: float
    tpot_ms: float
    hit_rate: float | None
    num_failed: int
    duration_s: float


def ratio_rows(cells: Sequence[Cell]) -> Iterator[list[str]]:
    """Yield the rows of the table: for each load, the servers in their order."""
    loads = sorted({(cell.workload, cell.concurrency) for cell in cells})
    servers = list(dict.fromkeys(cell.server for cell in cells))
    for workload, concurrency in loads:
        of_load = [c for c in cells if (c.workload, c.concurrency) == (workload, concurrency)]
        first = {cell.round: cell for cell in of_load if cell.server == servers[0]}
        for server in servers:
            rounds = [cell for cell in of_load if cell.server == server]
            if rounds:
                yield [workload, str(concurrency), server, *_numbers(rounds, first)]


def _numbers(rounds: Sequence[Cell], first: Mapping[int, Cell]) -> list[str]:
    rates = [cell.output_tokens_per_s for cell in rounds]
    hits = [cell.hit_rate for cell in rounds if cell.hit_rate is not None]
    rate = statistics.median(rates)
    pairs = [(cell, first[cell.round]) for cell in rounds]
    return [
        f"{rate:.1f}",
        _ratio((own.output_tokens_per_s, base.output_tokens_per_s) for own, base in pairs),
        f"{statistics.median(cell.ttft_ms for cell in rounds):.0f}",
        _ratio((base.ttft_ms, own.ttft_ms) for own, base in pairs),
        f"{statistics.median(cell.tpot_ms for cell in rounds):.1f}",
        _ratio((base.tpot_ms, own.tpot_ms) for own, base in pairs),
        f"{statistics.median(hits):.1%}" if hits else "",
        str(sum(cell.num_failed for cell in rounds)),
        f"{(max(rates) - min(rates)) / rate:.0%}" if rate else "",
    ]


def _ratio(pairs: Iterable[tuple[float, float]]) -> str:
    """Return the median of the rounds' ratios, which a machine that drifts disturbs least."""
    ratios = [value / base for value, base in pairs if base]
    return f"{statistics.median(ratios):.2f}" if ratios else ""


def format_rows(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as a Markdown table."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def seed_of(args: argparse.Namespace, round_: int, concurrency: int) -> int:
    """Return a seed that no other round or concurrency has."""
    base: int = args.seed
    return base * 1_000_000 + round_ * 10_000 + concurrency


async def run_round(args: argparse.Namespace, peer: Peer, round_: int) -> list[Cell]:
    """Start one server, load it with everything, and stop it."""
    log = args.log_folder / f"{peer.name}.log"
    cells = []
    async with serving(peer, log=log, patience_s=args.patience) as url:
        for workload in args.workloads:
            for concurrency, count in zip(args.concurrency, args.num_prompts, strict=True):
                seed = seed_of(args, round_, concurrency)
                done = await run_against_server(
                    PRESETS[workload](seed, count or None),
                    ServerSettings(url=url, form=args.prompt_form, timeout_s=args.timeout),
                    LoadSettings(
                        seed=seed, concurrency=concurrency, ignores_eos=not args.no_ignore_eos
                    ),
                )
                found = summarise(done.load, counted=done.counted)
                cell = _cell(peer, workload, concurrency, round_, found, done.form.value)
                _tell(cell, found)
                cells.append(cell)
    return cells


def _cell(
    peer: Peer, workload: str, concurrency: int, round_: int, found: Summary, form: str
) -> Cell:
    ttft, tpot = found.spreads[Metric.TTFT], found.spreads[Metric.TPOT]
    return Cell(
        server=peer.name,
        workload=workload,
        concurrency=concurrency,
        round=round_,
        form=form,
        output_tokens_per_s=found.per_s(found.output_tokens),
        ttft_ms=ttft.median,
        ttft_p99_ms=dict(ttft.percentiles)[99.0],
        tpot_ms=tpot.median,
        hit_rate=found.hit_rate,
        num_failed=found.num_planned - found.num_ok,
        duration_s=found.duration_s,
    )


def _tell(cell: Cell, found: Summary) -> None:
    cached = "not told" if cell.hit_rate is None else f"{cell.hit_rate:.1%}"
    error = f"; {found.errors[0].kind}: {found.errors[0].example}" if found.errors else ""
    print(
        f"round {cell.round} {cell.server} {cell.workload} c={cell.concurrency} ({cell.form}): "
        f"{cell.output_tokens_per_s:.1f} out tok/s, TTFT {cell.ttft_ms:.0f} ms, "
        f"TPOT {cell.tpot_ms:.1f} ms, cached {cached}, {cell.num_failed} failed{error}",
        file=sys.stderr,
        flush=True,
    )


async def run(args: argparse.Namespace) -> list[Cell]:
    """Run all rounds: in each, every server after the other."""
    cells: list[Cell] = []
    for round_ in range(args.rounds):
        for peer in args.server:
            cells += await run_round(args, peer, round_)
    return cells


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--server", action="append", required=True, type=_peer, metavar="NAME=COMMAND"
    )
    parser.add_argument("--workloads", nargs="+", choices=PRESETS, default=list(PRESETS))
    parser.add_argument("--concurrency", nargs="+", type=int, default=[8])
    parser.add_argument(
        "--num-prompts",
        nargs="+",
        type=int,
        metavar="N",
        help="one for each concurrency; 0: the workload's own (default: 0 for all)",
    )
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--prompt-form",
        choices=("ids", "text"),
        default="text",
        help="text is what every server takes (default: text)",
    )
    parser.add_argument("--no-ignore-eos", action="store_true", help="for servers that refuse it")
    parser.add_argument("--patience", type=float, default=300.0, help="seconds to the first answer")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds of a request")
    parser.add_argument("--log-folder", type=Path, help="of the servers' output")
    parser.add_argument("--json", type=Path, help="write every run to this file")
    args = parser.parse_args()
    args.num_prompts = args.num_prompts or [0] * len(args.concurrency)
    if len(args.num_prompts) != len(args.concurrency):
        parser.error("--num-prompts needs one number for each --concurrency")
    if len({peer.name for peer in args.server}) < len(args.server):
        parser.error("two servers have the same name")
    return args


def _peer(text: str) -> Peer:
    try:
        return Peer.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def main() -> int:
    """Run and report."""
    args = parse_args()
    if args.log_folder is None:
        args.log_folder = Path(tempfile.mkdtemp(prefix="compare-"))
    args.log_folder.mkdir(parents=True, exist_ok=True)
    print(f"the servers' output goes to {args.log_folder}", file=sys.stderr)
    try:
        cells = asyncio.run(run(args))
    except (RadixServeError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1
    print(describe_machine())
    print(format_rows([HEADER, *ratio_rows(cells)]))
    if args.json:
        found = [asdict(cell) for cell in cells]
        args.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 1 if any(cell.num_failed for cell in cells) else 0


if __name__ == "__main__":
    sys.exit(main())
