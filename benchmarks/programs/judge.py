"""An LLM as a judge: graders of three qualities read one answer side by side, then a verdict."""

from __future__ import annotations

import radixserve as rs
from benchmarks.programs.workload import Source, Workload

ANSWERS = 10
QUALITIES = ("correctness", "clarity", "completeness")


@rs.program(name="judge")
async def grade(p: rs.Prompt, rules: str, exchange: str) -> str:
    """Return the verdict."""
    p.system(rules)

    async def look(branch: rs.Prompt, quality: str) -> str:
        branch.user(f"{exchange}\n\nJudge the {quality} of the answer in one sentence.")
        return str(await branch.gen(quality, max_tokens=24, temperature=0))

    found = await p.each(look, QUALITIES)
    notes = "\n".join(f"{name}: {text}" for name, text in zip(QUALITIES, found, strict=True))
    p.user(f"{exchange}\n\n{notes}\n\nGive a rating from 1 to 10.")
    return str(await p.gen("verdict", max_tokens=24, temperature=0))


def load(source: Source) -> Workload:
    """Return the questions of MT-Bench that come with an answer."""
    prompts = {row["name"]: row for row in source.texts("programs/judge_prompts.json")}
    rules = prompts["single-v1-multi-turn"]["system_prompt"]
    rows = [row for row in source.rows("programs/mt_bench.jsonl.gz") if row.get("reference")]
    items = [
        (rules, f"[Question]\n{row['turns'][0]}\n\n[Answer]\n{row['reference'][0]}")
        for row in rows[: source.count(ANSWERS)]
    ]
    return Workload("judge", grade, items, "3 graders side by side and a verdict")
