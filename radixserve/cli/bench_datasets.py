"""The flags that say what is sent, and the sessions they stand for."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from radixserve.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from radixserve.bench.workload import Session

PRESETS = ("w1", "w2", "w3", "w4")
DATASETS = (
    "random",
    "prefix-repetition",
    "generated-shared-prefix",
    "multi-turn",
    "agent-tree",
    "custom",
    *PRESETS,
)
DEFAULT_COUNT = 100

DATASETS_HELP = """\
datasets:
  random                   prompts with nothing in common, but for --random-prefix-len
  prefix-repetition        a few prefixes, each before many suffixes
  generated-shared-prefix  groups of prompts, each behind a system prompt of its own
  multi-turn               conversations; each turn carries the server's own answers before it
  agent-tree               prompts that branch, level by level
  custom                   --dataset-path FILE.jsonl: {"prompt": ..., "output_tokens": 64}
  w1 w2 w3 w4              few-shot, chat, agent tree and no sharing, in fixed sizes
"""

_NUMBERS: Mapping[str, tuple[tuple[str, int, str], ...]] = {
    "random": (
        ("random-input-len", 1024, "tokens of a prompt after the prefix"),
        ("random-output-len", 128, "tokens of an answer"),
        ("random-prefix-len", 0, "tokens that all prompts begin with"),
    ),
    "prefix-repetition": (
        ("prefix-repetition-prefix-len", 256, "tokens of a prefix"),
        ("prefix-repetition-suffix-len", 256, "tokens of a suffix"),
        ("prefix-repetition-num-prefixes", 10, "different prefixes"),
        ("prefix-repetition-output-len", 128, "tokens of an answer"),
    ),
    "generated-shared-prefix": (
        ("gsp-num-groups", 16, "system prompts"),
        ("gsp-prompts-per-group", 8, "prompts behind each"),
        ("gsp-system-prompt-len", 2048, "tokens of a system prompt"),
        ("gsp-question-len", 128, "tokens of what follows it"),
        ("gsp-output-len", 256, "tokens of an answer"),
    ),
    "multi-turn": (
        ("multi-turn-num-conversations", 8, "conversations, unless --num-prompts is given"),
        ("multi-turn-num-turns", 5, "turns of each"),
        ("multi-turn-system-len", 100, "tokens that all begin with"),
        ("multi-turn-user-len", 80, "tokens that the user says in a turn"),
        ("multi-turn-output-len", 48, "tokens of an answer"),
    ),
    "agent-tree": (("agent-tree-output-len", 32, "tokens of an answer"),),
    "custom": (("custom-output-len", 256, "tokens of an answer where the file does not say"),),
}
"""Dataset -> (flag, default, meaning)."""
_LEVELS = (
    ("agent-tree-fanouts", [4, 4, 4], "children of a node"),
    ("agent-tree-lens", [600, 300, 40], "tokens of a node"),
)


def add_dataset_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say what is sent."""
    group = parser.add_argument_group("load")
    group.add_argument(
        "--dataset-name",
        type=_dataset_name,
        choices=DATASETS,
        default="random",
        metavar="NAME",
        help="what is sent, see below (default: random)",
    )
    group.add_argument(
        "--dataset-path", type=Path, metavar="FILE.jsonl", help="the prompts of custom"
    )
    group.add_argument(
        "--num-prompts",
        type=positive,
        metavar="N",
        help="requests; of conversations, all their turns together (default: "
        f"{DEFAULT_COUNT}, or what the dataset makes)",
    )
    for flags in _NUMBERS.values():
        for name, default, text in flags:
            group.add_argument(
                f"--{name}",
                type=not_negative if default == 0 else positive,
                default=default,
                metavar="N",
                help=f"{text} (default: {default})",
            )
    group.add_argument(
        "--random-range-ratio",
        type=float,
        default=0.0,
        metavar="R",
        help="lengths of random from 1 - R to 1 + R times those above (default: 0)",
    )
    for name, levels, text in _LEVELS:
        shown = " ".join(map(str, levels))
        group.add_argument(
            f"--{name}",
            type=positive,
            nargs="+",
            default=levels,
            metavar="N",
            help=f"{text}, level by level (default: {shown})",
        )


def sessions_of(args: argparse.Namespace, seed: int) -> list[Session]:
    """Return what the flags ask to be sent.

    Raises:
        ConfigError: they contradict each other, or the file cannot be read.
    """
    from radixserve.bench.presets import PRESETS

    name: str = args.dataset_name
    if name in PRESETS:
        return PRESETS[name](seed, args.num_prompts)
    return _MAKERS[name](args, seed)[: args.num_prompts]


def _random(args: argparse.Namespace, seed: int) -> list[Session]:
    from radixserve.bench.datasets import Span, independent

    return independent(
        args.num_prompts or DEFAULT_COUNT,
        Span.around(args.random_input_len, args.random_range_ratio),
        Span.around(args.random_output_len, args.random_range_ratio),
        seed=seed,
        prefix_len=args.random_prefix_len,
    )


def _prefix_repetition(args: argparse.Namespace, seed: int) -> list[Session]:
    from radixserve.bench.datasets import prefix_repetition

    return prefix_repetition(
        args.num_prompts or DEFAULT_COUNT,
        num_prefixes=args.prefix_repetition_num_prefixes,
        prefix_len=args.prefix_repetition_prefix_len,
        suffix_len=args.prefix_repetition_suffix_len,
        output_len=args.prefix_repetition_output_len,
        seed=seed,
    )


def _shared_groups(args: argparse.Namespace, seed: int) -> list[Session]:
    from radixserve.bench.datasets import shared_groups

    return shared_groups(
        num_groups=args.gsp_num_groups,
        prompts_per_group=args.gsp_prompts_per_group,
        system_len=args.gsp_system_prompt_len,
        question_len=args.gsp_question_len,
        output_len=args.gsp_output_len,
        seed=seed,
    )


def _conversations(args: argparse.Namespace, seed: int) -> list[Session]:
    from radixserve.bench.datasets import Span, conversations

    count = args.multi_turn_num_conversations
    if args.num_prompts is not None:
        count = max(1, args.num_prompts // args.multi_turn_num_turns)
    return conversations(
        count,
        num_turns=args.multi_turn_num_turns,
        system_len=args.multi_turn_system_len,
        users=Span.around(args.multi_turn_user_len, 0.5),
        output_len=args.multi_turn_output_len,
        seed=seed,
    )


def _agent_tree(args: argparse.Namespace, seed: int) -> list[Session]:
    from radixserve.bench.datasets import agent_tree

    return agent_tree(
        args.agent_tree_fanouts, args.agent_tree_lens, args.agent_tree_output_len, seed=seed
    )


def _custom(args: argparse.Namespace, seed: int) -> list[Session]:
    from radixserve.bench.custom import read_custom

    del seed
    if args.dataset_path is None:
        raise ConfigError("--dataset-name custom needs --dataset-path")
    return read_custom(args.dataset_path, count=args.num_prompts, output_len=args.custom_output_len)


_MAKERS: Mapping[str, Callable[[argparse.Namespace, int], list[Session]]] = {
    "random": _random,
    "prefix-repetition": _prefix_repetition,
    "generated-shared-prefix": _shared_groups,
    "multi-turn": _conversations,
    "agent-tree": _agent_tree,
    "custom": _custom,
}


def positive(text: str) -> int:
    """Read a number of at least 1, for argparse."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def not_negative(text: str) -> int:
    """Read a number of at least 0, for argparse."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError("must be at least 0")
    return value


def _dataset_name(text: str) -> str:
    return text.replace("_", "-")
