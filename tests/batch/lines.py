"""Lines of batch files, and a dispatch that answers at once."""

from __future__ import annotations

import asyncio
import json
import random
from typing import TYPE_CHECKING, Any

from radixserve.batch.dispatch import UnreachableError
from radixserve.batch.record import Reply

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from radixserve.batch.line import BatchLine

COMPLETIONS = "/v1/completions"
WORDS = ("the", "parrot", "said", "answer", "tree", "order", "letters", "once", "upon", "time")


def line(custom_id: str, prompt: Any = "Once", *, url: str = COMPLETIONS, **body: Any) -> str:
    """Return one line of a file."""
    asked = {"prompt": prompt, "max_tokens": 2, "temperature": 0} if url == COMPLETIONS else {}
    fields = {"custom_id": custom_id, "method": "POST", "url": url, "body": asked | body}
    return json.dumps(fields, ensure_ascii=False)


def write(path: Path, lines: Iterable[str], *, end: str = "\n") -> Path:
    """Write lines to a file and return its path."""
    path.write_text("".join(text + end for text in lines), encoding="utf-8", newline="")
    return path


def few_shot(
    num_groups: int, per_group: int, *, head_words: int = 60, seed: int = 0, **body: Any
) -> list[str]:
    """Return shuffled lines: in each group the prompts have a long head in common."""
    rng = random.Random(seed)
    lines = []
    for group in range(num_groups):
        head = f"Task {group}. " + " ".join(rng.choices(WORDS, k=head_words))
        for number in range(per_group):
            prompt = f"{head}\nQuestion {number}: {rng.choice(WORDS)}?"
            lines.append(line(f"g{group}-{number}", prompt, **body))
    rng.shuffle(lines)
    return lines


def records(path: Path) -> list[dict[str, Any]]:
    """Return the records of an output file; every line must be one."""
    text = path.read_bytes().decode()
    assert text == "" or text.endswith("\n")
    return [json.loads(each) for each in text.splitlines()]


def ids(path: Path) -> list[str]:
    """Return the ids in an output file, in its order."""
    return [str(record["custom_id"]) for record in records(path)]


class Echo:
    """Answers with the prompt. Implements `Dispatch`.

    Args:
        answer: Of a line and how often it has been sent; an exception is raised.
        together: So many answers are given at a time: fewer requests wait for more.
    """

    def __init__(
        self,
        answer: Callable[[BatchLine, int], Reply | UnreachableError] | None = None,
        *,
        together: int = 1,
    ) -> None:
        self._together = asyncio.Barrier(together)
        self._answer = answer or (lambda line, _: ok(line))
        self.sent: list[str] = []
        self.num_under_way = self.most_under_way = 0

    async def send(self, line: BatchLine) -> Reply:
        """Return the answer."""
        self.sent.append(line.custom_id)
        self.num_under_way += 1
        self.most_under_way = max(self.most_under_way, self.num_under_way)
        try:
            await asyncio.sleep(0)
            await self._together.wait()
            found = self._answer(line, self.sent.count(line.custom_id))
        finally:
            self.num_under_way -= 1
        if isinstance(found, UnreachableError):
            raise found
        return found


def ok(line: BatchLine) -> Reply:
    """Return a good answer."""
    usage = {
        "prompt_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens": 2,
    }
    body = {"choices": [{"text": line.body.get("prompt")}], "usage": usage}
    return Reply(200, f"req-{line.custom_id}", body)


def refused(status: int, code: str = "some_code", **fields: Any) -> Reply:
    """Return an answer that is an error."""
    return Reply(status, "req", {"error": {"message": "no", "code": code}}, **fields)
