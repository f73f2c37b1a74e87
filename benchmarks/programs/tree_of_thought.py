"""Tree of thought on the game of 24: three proposals a state, each graded, the best two go on."""

from __future__ import annotations

import radixserve as rs
from benchmarks.programs.workload import Source, Workload

PUZZLES = 3
WIDTH = 3
DEPTH = 3
KEPT = 2
GRADES = ("sure", "likely")
"""The best first; whatever else is written counts as impossible."""


async def _propose(branch: rs.Prompt, _: int) -> tuple[int, rs.Prompt]:
    await branch.gen("step", max_tokens=24, stop="\n", temperature=0.8)
    branch += "\n"
    (judge,) = branch.fork(1)
    judge += "Can the numbers that are left reach 24 (sure/likely/impossible)?"
    told = str(await judge.gen("grade", max_tokens=3, temperature=0)).strip().lower()
    return next((at for at, grade in enumerate(GRADES) if told.startswith(grade)), 2), branch


@rs.program(name="tot", seed=24)
async def search(p: rs.Prompt, shots: str, puzzle: str) -> str:
    """Return the answer of the best branch."""
    p += shots.format(input=puzzle).rstrip() + "\nSteps:\n"
    beam = [p]
    for _ in range(DEPTH):
        grown = [pair for branch in beam for pair in await branch.each(_propose, range(WIDTH))]
        beam = [branch for _, branch in sorted(grown, key=lambda pair: pair[0])[:KEPT]]
    best = beam[0]
    best += "Answer:"
    return str(await best.gen("answer", max_tokens=24, temperature=0, stop="\n"))


def load(source: Source) -> Workload:
    """Return the first puzzles."""
    shots = source.texts("programs/tot_prompts.json")["game24"]["cot_prompt"]
    rows = source.rows("programs/tot_game24.jsonl.gz")[: source.count(PUZZLES)]
    return Workload(
        "tot", search, [(shots, row["x"]) for row in rows], "game of 24, 3 wide, 3 deep"
    )
