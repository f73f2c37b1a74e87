"""ReAct over HotpotQA: six worked examples, then thoughts between recorded observations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import radixserve as rs
from benchmarks.programs.workload import Source, Workload

if TYPE_CHECKING:
    from collections.abc import Sequence

AGENTS = 8
MAX_STEPS = 3
OBSERVATION_CHARS = 400


@rs.program(name="react")
async def act(p: rs.Prompt, shots: str, question: str, observations: Sequence[str]) -> str:
    """Return the answer. What tools would have said was recorded, so that every run is alike."""
    p += f"{shots.strip()}\n\nQuestion: {question}\n"
    for step, observation in enumerate(observations, start=1):
        p += f"Thought {step}:"
        await p.gen("thought", max_tokens=32, temperature=0, stop=f"\nObservation {step}:")
        p += f"\nObservation {step}: {observation}\n"
    p += "Answer:"
    return str(await p.gen("answer", max_tokens=16, temperature=0, stop="\n"))


def load(source: Source) -> Workload:
    """Return the recorded runs that looked at something twice or more."""
    prompts = source.texts("agent_text/react_prompts.json")
    items = []
    for row in source.rows("agent_text/react_hotpotqa_trajs.jsonl.gz"):
        question, *later = (message["content"] for message in row["messages"])
        seen = [
            text.removeprefix("Observation:").strip()[:OBSERVATION_CHARS]
            for text in later
            if text.startswith("Observation:") and "Episode finished" not in text
        ]
        if len(seen) > 1:
            items.append((prompts["hotpotqa"]["webthink_simple6"], question, seen[:MAX_STEPS]))
    return Workload("react", act, items[: source.count(AGENTS)], "6 shots, 2-3 observations each")
