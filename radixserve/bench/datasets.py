"""Shapes of load that are known from other clients, as sessions. Equal seeds give equal loads."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from radixserve.bench.workload import Drawn, Session, Turn, single
from radixserve.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Span:
    """Lengths drawn evenly from `low` to `high`, both included; tokens."""

    low: int
    high: int

    @classmethod
    def around(cls, middle: int, ratio: float) -> Span:
        """Return the lengths within `ratio` of the middle, 0 for the middle alone.

        Raises:
            ConfigError: the ratio is not from 0 to below 1.
        """
        if not 0 <= ratio < 1:
            raise ConfigError(f"a range ratio must be from 0 to below 1; got {ratio}")
        return cls(max(1, round(middle * (1 - ratio))), max(1, round(middle * (1 + ratio))))

    def draw(self, rng: random.Random) -> int:
        """Return one length."""
        return rng.randint(self.low, self.high)


def independent(
    count: int, inputs: Span, outputs: Span, *, seed: int, prefix_len: int = 0, name: str = "random"
) -> list[Session]:
    """Return prompts with nothing in common but a prefix of `prefix_len` tokens."""
    rng = random.Random(f"{seed}/{name}")
    prefix = Drawn(f"{name}/prefix", prefix_len)
    return [
        single(
            f"{name}/{i}",
            (prefix, Drawn(f"{name}/own/{i}", inputs.draw(rng))),
            outputs.draw(rng),
        )
        for i in range(count)
    ]


def prefix_repetition(
    count: int, *, num_prefixes: int, prefix_len: int, suffix_len: int, output_len: int, seed: int
) -> list[Session]:
    """Return prompts that begin with one of a few prefixes, evenly spread, in random order.

    Raises:
        ConfigError: there are more prefixes than prompts.
    """
    if count < num_prefixes:
        raise ConfigError(f"{num_prefixes} prefixes need at least as many prompts; got {count}")
    sessions = [
        single(
            f"repetition/{i}",
            (
                Drawn(f"repetition/prefix/{i % num_prefixes}", prefix_len),
                Drawn(f"repetition/suffix/{i}", suffix_len),
            ),
            output_len,
        )
        for i in range(count)
    ]
    return shuffled(sessions, seed, "repetition")


def agent_tree(
    fanouts: Sequence[int],
    lengths: Sequence[int],
    output_len: int,
    *,
    seed: int,
    name: str = "tree",
) -> list[Session]:
    """Return the paths of a tree of prompts, in random order.

    Args:
        fanouts: Children of each node, level by level from the root.
        lengths: Tokens of a node, level by level.

    Raises:
        ConfigError: the levels do not match.
    """
    if not fanouts or len(fanouts) != len(lengths):
        raise ConfigError(f"a tree needs a length a level; got {fanouts} and {lengths}")
    sessions = []
    for path in itertools.product(*map(range, fanouts)):
        pieces = [
            Drawn("/".join([name, *map(str, path[: depth + 1])]), length)
            for depth, length in enumerate(lengths)
        ]
        sessions.append(single(pieces[-1].name, pieces, output_len))
    return shuffled(sessions, seed, name)


def shared_groups(
    *,
    num_groups: int,
    prompts_per_group: int,
    system_len: int,
    question_len: int,
    output_len: int,
    seed: int,
) -> list[Session]:
    """Return groups of prompts, each behind a system prompt of its own, in random order."""
    return agent_tree(
        (num_groups, prompts_per_group),
        (system_len, question_len),
        output_len,
        seed=seed,
        name="groups",
    )


def conversations(
    count: int,
    *,
    num_turns: int,
    system_len: int,
    users: Span,
    output_len: int,
    seed: int,
    name: str = "chat",
) -> list[Session]:
    """Return conversations that all begin with the same system prompt."""
    rng = random.Random(f"{seed}/{name}")
    system = (Drawn(f"{name}/system", system_len),)
    return [
        Session(
            f"{name}/{i}",
            tuple(
                Turn((Drawn(f"{name}/user/{i}/{turn}", users.draw(rng)),), output_len)
                for turn in range(num_turns)
            ),
            system,
        )
        for i in range(count)
    ]


def shuffled(sessions: list[Session], seed: int, name: str) -> list[Session]:
    """Return them in an order that the seed decides."""
    random.Random(f"{seed}/{name}/order").shuffle(sessions)
    return sessions
