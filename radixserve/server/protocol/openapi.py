"""``/openapi.json``: the routes and the bodies, described by the models that check them.

Source: spec.openapis.org/oas/v3.1.0.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pydantic.json_schema import models_json_schema

import radixserve
from radixserve.server.protocol.openapi_operation import Access
from radixserve.server.protocol.openapi_operations import OPERATIONS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import BaseModel

    from radixserve.server.protocol.openapi_operation import Operation

    Refs = Mapping[type[BaseModel], dict[str, Any]]

_REF = "#/components/schemas/{model}"
_MODULE = re.compile(r"radixserve__server__protocol__")
_PATH_PARAMETER = re.compile(r"\{(\w+)\}")
_DESCRIPTION = (
    "Fields that the description does not name are refused with 400, unless the server was "
    "started to ignore them; so is whatever asks for what is not built. JSON null means the same "
    "as leaving a field out."
)
_SECURITY = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
}


def openapi_json() -> dict[str, Any]:
    """Return the description of all routes. Complexity: milliseconds; the same every time."""
    refs, definitions = _schemas()
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        described = _operation_json(operation, refs, definitions)
        paths.setdefault(operation.path, {})[operation.method] = described
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "radixserve",
            "version": radixserve.__version__,
            "description": _DESCRIPTION,
        },
        "paths": paths,
        "components": {"schemas": definitions, "securitySchemes": _SECURITY},
    }


def _schemas() -> tuple[Refs, dict[str, Any]]:
    """Return the reference to each model, and what the references lead to."""
    models = {
        model: None
        for operation in OPERATIONS
        for model in (operation.body, operation.query, operation.answer, operation.error)
        if model is not None
    }
    found, schema = models_json_schema(
        [(model, "validation") for model in models], ref_template=_REF
    )
    refs = {model: _tidy(found[model, "validation"]) for model in models}
    definitions: dict[str, Any] = _tidy(schema["$defs"])
    for operation in OPERATIONS:
        if operation.body is not None:
            _allow_null(definitions[_name_of(refs[operation.body])])
    return refs, definitions


def _name_of(ref: Mapping[str, Any]) -> str:
    return str(ref["$ref"]).rpartition("/")[2]


def _tidy(schema: Any) -> Any:
    """Return a schema with shorter names, whose alternatives need not exclude each other.

    Bodies choose an alternative by a rule of their own, such as by a field's value.
    """
    if isinstance(schema, dict):
        renamed = {"anyOf" if key == "oneOf" else _short(key): it for key, it in schema.items()}
        return {key: _tidy(value) for key, value in renamed.items()}
    if isinstance(schema, list):
        return [_tidy(item) for item in schema]
    return _short(schema) if isinstance(schema, str) else schema


def _short(name: str) -> str:
    """Return a name without the module that tells it from others: `chat_TextPart`."""
    return _MODULE.sub("", name).replace("__", "_") if "__" in name else name


def _allow_null(body: dict[str, Any]) -> None:
    """Let fields that may be left out be null. Mutates: `body`."""
    for name, field in body["properties"].items():
        if name in body.get("required", ()) or {"type": "null"} in field.get("anyOf", ()):
            continue
        kept = {key: field.pop(key) for key in ("title", "description", "default") if key in field}
        body["properties"][name] = {**kept, "anyOf": [field, {"type": "null"}]}


def _operation_json(
    operation: Operation, refs: Refs, definitions: Mapping[str, Any]
) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": _operation_id(operation),
        "summary": operation.summary,
        "tags": [operation.tag],
        "responses": _responses_json(operation, refs),
        "security": _security_json(operation.access),
    }
    if operation.access is Access.ADMINS:
        described["description"] = "Needs an admin key where keys are set."
    parameters = _parameters_json(operation, refs, definitions)
    if parameters:
        described["parameters"] = parameters
    if operation.body is not None:
        kind = "multipart/form-data" if operation.takes_form else "application/json"
        content = {kind: {"schema": refs[operation.body]}}
        described["requestBody"] = {"required": operation.needs_body, "content": content}
    return described


def _security_json(access: Access) -> list[dict[str, Any]]:
    """Either way of showing a key will do."""
    return [] if access is Access.ANYBODY else [{name: []} for name in _SECURITY]


def _operation_id(operation: Operation) -> str:
    return re.sub(r"\W+", "_", f"{operation.method}{operation.path}").strip("_")


def _responses_json(operation: Operation, refs: Refs) -> dict[str, Any]:
    error = {"application/json": {"schema": refs[operation.error]}}
    return {
        "200": {"description": "Success.", "content": _content_json(operation, refs)},
        "4XX": {"description": "The caller's fault.", "content": error},
        "5XX": {"description": "The server's fault, or its end.", "content": error},
    }


def _content_json(operation: Operation, refs: Refs) -> dict[str, Any]:
    if operation.answer is None:
        return {operation.media: {"schema": {"type": "string"}}}
    schema = refs[operation.answer]
    if operation.is_listed:
        schema = {"anyOf": [schema, {"type": "array", "items": schema}]}
    content: dict[str, Any] = {"application/json": {"schema": schema}}
    if operation.streams:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    return content


def _parameters_json(
    operation: Operation, refs: Refs, definitions: Mapping[str, Any]
) -> list[dict[str, Any]]:
    in_path = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PATH_PARAMETER.findall(operation.path)
    ]
    if operation.query is None:
        return in_path
    query = definitions[_name_of(refs[operation.query])]
    required = query.get("required", ())
    in_query = [
        {"name": name, "in": "query", "required": name in required, "schema": _not_null(schema)}
        for name, schema in query["properties"].items()
    ]
    return in_path + in_query


def _not_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A query says null by leaving a parameter out."""
    choices = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    if len(choices) != 1:
        return schema
    rest = {key: value for key, value in schema.items() if key not in ("anyOf", "default")}
    return {**rest, **choices[0]}
