"""Tree of thought on the game of 24: branches propose, a judge grades them, the best go on.

python examples/tree_of_thought.py
"""

import asyncio

import radixserve as rs

PUZZLE = "4 9 10 13"
WIDTH = 3
DEPTH = 2
KEPT = 2


async def propose(branch: rs.Prompt, _: int) -> tuple[int, rs.Prompt]:
    """Write one step, and have it graded where the grade does not become part of the branch."""
    branch += "\nNext step:"
    await branch.gen("step", max_tokens=24, stop="\n", temperature=0.9)
    (judge,) = branch.fork(1)
    judge += "\nIs this on the right path? Grade from 1 to 9:"
    grade = await judge.gen("grade", regex=" [1-9]", temperature=0)
    return int(grade), branch


@rs.program(name="tot", seed=7)
async def tree_of_thought(p: rs.Prompt, puzzle: str) -> str:
    """Return what the best branch has found."""
    p += f"Make 24 from {puzzle} with + - * and /, one step a line.\n"
    beam = [p]
    for _ in range(DEPTH):
        grown = [pair for branch in beam for pair in await branch.each(propose, range(WIDTH))]
        beam = [branch for _, branch in sorted(grown, key=lambda pair: -pair[0])[:KEPT]]
    best = beam[0]
    best += "\nAnswer:"
    return str(await best.gen("answer", max_tokens=24, stop="\n", temperature=0))


async def main() -> None:
    """Solve one puzzle and say what the branches have shared."""
    run = tree_of_thought.new_run()
    print(await tree_of_thought.run_item(run, 0, PUZZLE))
    print(run.report)


if __name__ == "__main__":
    asyncio.run(main())
