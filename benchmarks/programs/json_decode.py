"""JSON that follows a public schema: what the grammar leaves no choice about is not sampled."""

from __future__ import annotations

import json
from typing import Any

import radixserve as rs
from benchmarks.programs.workload import Source, Workload
from radixserve.errors import IncompleteError

SCHEMAS = 12
VARIANTS = 3
MAX_SCHEMA_CHARS = 700
RULES = (
    "You fill in forms. You are given a JSON schema and answer with one JSON object that follows "
    "it, without any other text. Use short, plausible values: names of people and places, small "
    "numbers, dates of this century. Leave out what is optional unless it is interesting."
)


@rs.program(name="json", seed=3)
async def fill(p: rs.Prompt, schema: dict[str, Any]) -> list[Any]:
    """Return a few objects of the schema; one that was cut is kept as the text it is."""
    p.system(RULES)

    async def one(branch: rs.Prompt, number: int) -> Any:
        branch.user(f"The schema:\n{json.dumps(schema)}\n\nWrite object number {number}.")
        try:
            return await branch.gen("object", schema=schema, max_tokens=48, temperature=0)
        except IncompleteError as cut:
            return str(cut.partial)

    return await p.each(one, range(1, VARIANTS + 1))


def load(source: Source) -> Workload:
    """Return small object schemas of JSONSchemaBench's easy set."""
    rows = source.rows("constrained/jsonschemabench.jsonl.gz")
    small = [
        row["schema"]
        for row in rows
        if row["set"] == "Github_easy"
        and row["schema"].get("type") == "object"
        and len(json.dumps(row["schema"])) < MAX_SCHEMA_CHARS
    ]
    items = small[: source.count(SCHEMAS)]
    return Workload("json", fill, [(schema,) for schema in items], "12 schemas, 3 objects each")
