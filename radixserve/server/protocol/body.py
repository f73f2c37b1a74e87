"""What every JSON object from a caller is checked against."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

INT32_MAX = 2**31 - 1


class RequestBody(BaseModel):
    """A JSON object from a caller: nothing is converted, nothing unknown is kept."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)
