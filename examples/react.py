"""An agent with one tool: it looks facts up and answers a question of two steps.

The tool's types are what the model may write: here it can ask for no article that does not exist.
A model of 135 million parameters often asks for the same one again; a larger one answers.

python examples/react.py
"""

import asyncio
from typing import Literal

import radixserve as rs

FACTS = {
    "radix tree": "The radix tree was described by Donald Morrison in 1968.",
    "Donald Morrison": "Donald Morrison worked at Sandia Laboratories in Albuquerque.",
    "Albuquerque": "Albuquerque is the largest city of New Mexico.",
}
QUESTION = "In which city did the inventor of the radix tree work?"


def look_up(subject: Literal["radix tree", "Donald Morrison", "Albuquerque"]) -> str:
    """Read the article about a subject."""
    return FACTS[subject]


@rs.program(name="react", max_tokens=96)
async def react(p: rs.Prompt, question: str) -> str:
    """Return the answer, or what the agent wrote last."""
    p.system("Look up what you need, then answer in a few words.")
    p.user(question)
    try:
        return str(await p.act([look_up], result=str, max_steps=4, temperature=0))
    except (rs.StepLimitError, rs.IncompleteError) as lost:
        return f"(no answer) {lost.partial}"


async def main() -> None:
    """Answer one question."""
    run = react.new_run()
    print(await react.run_item(run, 0, QUESTION))
    print(run.report)


if __name__ == "__main__":
    asyncio.run(main())
