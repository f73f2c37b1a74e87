"""The flags that say how a load is sent."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING

from radixserve.cli.bench_datasets import not_negative, positive

if TYPE_CHECKING:
    from radixserve.bench.run import LoadSettings


def add_load_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say how a load is sent."""
    group = parser.add_argument_group("sending")
    group.add_argument(
        "--request-rate",
        type=_rate,
        default=math.inf,
        metavar="R",
        help="requests, or conversations, begun a second, at random times (default: inf, all at "
        "once)",
    )
    group.add_argument(
        "--max-concurrency", type=positive, metavar="N", help="most requests under way"
    )
    group.add_argument(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        help="let answers go on to their full length (default: yes, but for custom)",
    )
    group.add_argument(
        "--temperature", type=float, default=0.0, metavar="T", help="(default: 0, greedy)"
    )
    group.add_argument(
        "--num-warmups",
        type=not_negative,
        default=1,
        metavar="N",
        help="requests before the clock starts (default: 1)",
    )
    group.add_argument(
        "--id-range",
        type=_id_range,
        metavar="LOW:HIGH",
        help="token ids that prompts are drawn from (default: 300:20000)",
    )
    group.add_argument("--quiet", action="store_true", help="show no progress")


def load_settings(
    args: argparse.Namespace, *, seed: int, id_range: tuple[int, int] | None = None
) -> LoadSettings:
    """Return the settings that the flags ask for.

    Args:
        id_range: Where the flags name none; None for the usual one.
    """
    from radixserve.bench.run import LoadSettings
    from radixserve.bench.wording import DEFAULT_ID_RANGE

    is_custom = args.dataset_name == "custom"
    return LoadSettings(
        seed=seed,
        id_range=args.id_range or id_range or DEFAULT_ID_RANGE,
        request_rate=args.request_rate,
        concurrency=args.max_concurrency,
        num_warmups=args.num_warmups,
        temperature=args.temperature,
        ignores_eos=not is_custom if args.ignore_eos is None else args.ignore_eos,
    )


def _rate(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError("must be above 0")
    return value


def _id_range(text: str) -> tuple[int, int]:
    low, _, high = text.partition(":")
    try:
        return int(low), int(high)
    except ValueError as error:
        raise argparse.ArgumentTypeError("is LOW:HIGH, as in 300:20000") from error
