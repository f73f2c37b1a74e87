"""What every JSON object from a caller is checked against."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

INT32_MAX = 2**31 - 1


class RequestBody(BaseModel):
    """A JSON object from a caller: nothing is converted, nothing unknown is kept."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )


def one_of(*names: str) -> ConfigDict:
    """Return what a model's description says of fields of which one must be there.

    It describes; the route's own parser checks.
    """
    return ConfigDict(json_schema_extra={"anyOf": [{"required": [name]} for name in names]})
