"""A judge: three graders read the same essay side by side, and a verdict sums them up.

python examples/judge.py
"""

import asyncio
from typing import Literal

from pydantic import BaseModel

import radixserve as rs

ESSAY = (
    "Trees matter because they clean the air. When a city plants trees along its streets, summers "
    "get cooler and people walk more. Some say that leaves block the drains, but a broom is "
    "cheaper than a hospital. Every street should therefore have trees on both of its sides."
)
DIMENSIONS = ("clarity", "evidence", "style")


class Grade(BaseModel):
    """One grader's opinion."""

    points: Literal[1, 2, 3, 4, 5]


@rs.program(name="judge")
async def judge(p: rs.Prompt, essay: str) -> dict[str, int]:
    """Return the points for each dimension."""
    p.system("You grade essays. You answer in JSON.")

    async def grade(branch: rs.Prompt, dimension: str) -> tuple[str, int]:
        branch.user(f"{essay}\n\nGrade the {dimension} of this essay from 1 to 5 points.")
        found: Grade = await branch.gen(dimension, Grade, temperature=0, max_tokens=32)
        return dimension, found.points

    return dict(await p.each(grade, DIMENSIONS))


async def main() -> None:
    """Grade one essay."""
    run = judge.new_run()
    print(await judge.run_item(run, 0, ESSAY))
    print(run.report)


if __name__ == "__main__":
    asyncio.run(main())
