"""A call in the words of ``POST /generate``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from radixserve.grammar.spec import ChoiceSpec, GrammarTextSpec, JsonSchemaSpec, RegexSpec

if TYPE_CHECKING:
    from radixserve.frontend.backends.protocol import CallHints, GenCall
    from radixserve.frontend.constraint import Constraint


def sampling_fields(call: GenCall) -> dict[str, Any]:
    """Return how the output is sampled and how long it may be."""
    return {
        "max_new_tokens": call.max_tokens,
        "temperature": call.temperature,
        "top_p": call.top_p,
        "top_k": call.top_k,
        "seed": call.seed,
        "stop": list(call.stop),
    }


def constraint_fields(constraint: Constraint | None) -> dict[str, Any]:
    """Return what the output must look like."""
    spec = constraint.spec if constraint is not None else None
    if isinstance(spec, JsonSchemaSpec):
        return {"json_schema": spec.schema}
    if isinstance(spec, RegexSpec):
        return {"regex": spec.pattern}
    if isinstance(spec, ChoiceSpec):
        return {"guided_choice": list(spec.options)}
    if isinstance(spec, GrammarTextSpec):
        return {"ebnf": spec.text}
    assert spec is None, "no output type makes another"
    return {}


def hint_fields(hints: CallHints, *, sends_hints: bool) -> dict[str, Any]:
    """Return whom the work is counted for, and what is known of the call's future."""
    fields: dict[str, Any] = {"priority": hints.priority, "radix": {}}
    if hints.program:
        fields["user"] = hints.program
    if not sends_hints:
        return fields
    if hints.ttl_s or hints.prefix_len:
        fields["radix"]["cache"] = {"ttl_s": hints.ttl_s, "prefix_len": hints.prefix_len}
    if hints.is_end:
        fields["radix"]["event"] = "end"
    elif hints.pause_s is not None:
        fields["radix"]["event"] = {"pause": {"expect_s": hints.pause_s}}
    return fields
