"""Skeleton of thought: an outline first, then all its points side by side."""

from __future__ import annotations

import re

import radixserve as rs
from benchmarks.programs.workload import Source, Workload

QUESTIONS = 8
MAX_POINTS = 4
_POINT = re.compile(r"^\s*(\d+)\.\s*(\S[^\n]*)", re.MULTILINE)
_SWITCH = "[ROLESWITCHING assistant:]"


@rs.program(name="sot")
async def write(p: rs.Prompt, outline_prompt: str, point_prompt: str, question: str) -> list[str]:
    """Return the text of each point."""
    planner, *writers = p.fork(1 + MAX_POINTS)
    asked, begun = outline_prompt.split(_SWITCH)
    planner.user(asked.replace("{request}", question).strip())
    with planner.assistant():
        planner += begun.strip()
        written = await planner.gen("outline", max_tokens=64, temperature=0)
    outline = begun.strip() + str(written)
    points = _POINT.findall(outline)[:MAX_POINTS] or [("1", question)]

    async def expand(_: rs.Prompt, place: int) -> str:
        number, title = points[place]
        told, start = (
            point_prompt.replace("{request}", question)
            .replace("{outline}", outline)
            .replace("{point}", number)
            .replace("{point_outline}", title)
            .split(_SWITCH)
        )
        writer = writers[place]
        writer.user(told.strip())
        with writer.assistant():
            writer += start.strip()
            return str(await writer.gen("point", max_tokens=32, temperature=0))

    return await p.each(expand, range(len(points)))


def load(source: Source) -> Workload:
    """Return the first questions of Vicuna's bench."""
    prompts = source.texts("programs/sot_prompts.json")["sot_opensource"]
    rows = source.rows("programs/vicuna_bench.jsonl.gz")[: source.count(QUESTIONS)]
    items = [(prompts["outline_prompt"], prompts["point_prompt"], row["turns"][0]) for row in rows]
    return Workload("sot", write, items, "outline, then up to 4 points side by side")
