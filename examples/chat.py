"""A conversation: each turn goes on from the very tokens of the last one.

python examples/chat.py
"""

import asyncio

import radixserve as rs

LINES = ("What is a cache?", "And what is a queue?", "Which of the two forgets?")


async def talk(lines: tuple[str, ...] = LINES) -> rs.Report:
    """Ask one question after the other."""
    async with rs.session(ttl=60, max_tokens=40) as p:
        p.system("You answer in one short sentence.")
        for line in lines:
            p.user(line)
            answer = await p.gen(temperature=0)
            print(f"> {line}\n{answer}\n")
        return p.report


if __name__ == "__main__":
    print(asyncio.run(talk()))
