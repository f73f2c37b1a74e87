"""Few-shot classification: many questions behind the same worked examples.

python examples/few_shot.py
"""

import asyncio

import radixserve as rs

SHOTS = (
    ("I loved every minute of it.", "positive"),
    ("What a bore, I left early.", "negative"),
    ("The best film of the year.", "positive"),
    ("A waste of time and money.", "negative"),
)
REVIEWS = (
    "An instant classic, see it twice.",
    "I fell asleep after ten minutes.",
    "Clever, warm and very funny.",
    "The plot made no sense at all.",
)


@rs.program(name="classify", priority="batch")
async def classify(p: rs.Prompt, review: str) -> str:
    """Return positive or negative."""
    for text, label in SHOTS:
        p += f"Review: {text}\nSentiment: {label}\n\n"
    p += f"Review: {review}\nSentiment:"
    return (await p.select("label", [" positive", " negative"])).strip()


async def main() -> None:
    """Classify all reviews and say what the cache has saved."""
    labels = await classify.map(REVIEWS)
    for review, label in zip(REVIEWS, labels, strict=True):
        print(f"{label:10}{review}")
    print(labels.report)


if __name__ == "__main__":
    asyncio.run(main())
