"""All workloads by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.programs import chat, json_decode, judge, mmlu, react, skeleton, tree_of_thought

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from benchmarks.programs.workload import Source, Workload

CATALOG: Mapping[str, Callable[[Source], Workload]] = {
    "mmlu": mmlu.load,
    "react": react.load,
    "tot": tree_of_thought.load,
    "sot": skeleton.load,
    "judge": judge.load,
    "json": json_decode.load,
    "chat-short": chat.load_short,
    "chat-long": chat.load_long,
}
