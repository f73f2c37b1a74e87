"""What a caller says an output must look like, in the words of three APIs.

    response_format                     OpenAI
    structured_outputs, guided_*        vLLM
    regex, ebnf, json_schema            SGLang

They say the same things; a request says one of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from radixserve.engine.grammars import (
    ANY_JSON_OBJECT,
    ChoiceSpec,
    GrammarTextSpec,
    JsonSchemaSpec,
    RegexSpec,
)
from radixserve.server.protocol.body import RequestBody
from radixserve.server.protocol.refusal import refusal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from radixserve.engine.async_engine import AsyncEngine
    from radixserve.engine.grammars import GrammarSpec
    from radixserve.server.protocol.fields import GenerationFields
    from radixserve.types import Grammar

MAX_SCHEMA_NAME_LEN = 256
MAX_CHOICES = 10_000

Choices = Annotated[
    list[Annotated[str, Field(min_length=1)]],
    Field(min_length=1, max_length=MAX_CHOICES, fail_fast=True),
]


class TextFormat(RequestBody):
    """Any text."""

    type: Literal["text"]


class JsonObjectFormat(RequestBody):
    """Any JSON object."""

    type: Literal["json_object"]


class NamedSchema(RequestBody):
    """A schema, and what the caller calls it."""

    name: Annotated[str, Field(min_length=1, max_length=MAX_SCHEMA_NAME_LEN)]
    schema_: Any = Field(alias="schema")
    strict: bool | None = None
    """Accepted and unused: the schema is always enforced."""
    description: str | None = None


class JsonSchemaFormat(RequestBody):
    """A JSON value that is valid under a schema."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


def _branch_of_format(value: Any) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return f"<{kind}>" if isinstance(kind, str) else None


ResponseFormat = Annotated[
    Annotated[TextFormat, Tag("<text>")]
    | Annotated[JsonObjectFormat, Tag("<json_object>")]
    | Annotated[JsonSchemaFormat, Tag("<json_schema>")],
    Discriminator(
        _branch_of_format,
        custom_error_type="unknown_format",
        custom_error_message="Input should be an object of type text, json_object or json_schema",
    ),
]


class StructuredOutputs(RequestBody):
    """vLLM's object; one of its fields."""

    json_: Any = Field(alias="json", default=None)
    """A schema, as an object or as JSON text."""
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None
    json_object: bool | None = None


class StructuredFields(RequestBody):
    """The fields that say what an output must look like: at most one of them in a request."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Any = None
    """A schema, as an object or as JSON text."""
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    json_schema: Any = None
    """A schema, as JSON text or as an object."""

    def grammar_specs(self) -> Iterator[tuple[str, GrammarSpec]]:
        """Yield what is asked for, each with the field's name."""
        yield from _of_response_format(self.response_format)
        if self.structured_outputs is not None:
            yield from _of_structured_outputs(self.structured_outputs)
        yield from _of_schema("guided_json", self.guided_json)
        yield from _of_regex("guided_regex", self.guided_regex)
        yield from _of_choices("guided_choice", self.guided_choice)
        yield from _of_text("guided_grammar", self.guided_grammar)
        yield from _of_regex("regex", self.regex)
        yield from _of_text("ebnf", self.ebnf)
        yield from _of_schema("json_schema", self.json_schema)


def check_structured(fields: GenerationFields) -> None:
    """Refuse a request that says twice what its output must look like, or that cannot keep to it.

    Raises:
        InvalidRequestError: names the fields.
    """
    names = [name for name, _ in fields.grammar_specs()]
    if len(names) > 1:
        raise refusal(
            f"{names[1]}: {names[0]} says already what the output must look like.", names[1]
        )
    if not names:
        return
    if fields.ignore_eos:
        raise refusal(f"ignore_eos: not allowed with {names[0]}.", "ignore_eos")
    if fields.beam is not None:
        raise refusal(f"{names[0]}: not allowed with use_beam_search.", names[0])


async def grammar_of(fields: GenerationFields, engine: AsyncEngine) -> Grammar | None:
    """Return the grammar that a request asks for, if it asks for one.

    Raises:
        UnsupportedGrammarError: names the field and what cannot be enforced.
    """
    for name, spec in fields.grammar_specs():
        return await engine.compile_grammar(spec, param=name)
    return None


def _of_response_format(
    wanted: TextFormat | JsonObjectFormat | JsonSchemaFormat | None,
) -> Iterator[tuple[str, GrammarSpec]]:
    if isinstance(wanted, JsonObjectFormat):
        yield "response_format", ANY_JSON_OBJECT
    elif isinstance(wanted, JsonSchemaFormat):
        name = "response_format.json_schema.schema"
        yield name, JsonSchemaSpec.of(wanted.json_schema.schema_)


def _of_structured_outputs(wanted: StructuredOutputs) -> Iterator[tuple[str, GrammarSpec]]:
    yield from _of_schema("structured_outputs.json", wanted.json_)
    yield from _of_regex("structured_outputs.regex", wanted.regex)
    yield from _of_choices("structured_outputs.choice", wanted.choice)
    yield from _of_text("structured_outputs.grammar", wanted.grammar)
    if wanted.json_object:
        yield "structured_outputs.json_object", ANY_JSON_OBJECT


def _of_schema(name: str, schema: Any) -> Iterator[tuple[str, GrammarSpec]]:
    if isinstance(schema, str) and schema:
        yield name, JsonSchemaSpec(schema)
    elif schema is not None and schema != "":
        yield name, JsonSchemaSpec.of(schema)


def _of_regex(name: str, pattern: str | None) -> Iterator[tuple[str, GrammarSpec]]:
    if pattern:
        yield name, RegexSpec(pattern)


def _of_choices(name: str, options: list[str] | None) -> Iterator[tuple[str, GrammarSpec]]:
    if options is not None:
        yield name, ChoiceSpec(tuple(options))


def _of_text(name: str, text: str | None) -> Iterator[tuple[str, GrammarSpec]]:
    if text:
        yield name, GrammarTextSpec(text)
