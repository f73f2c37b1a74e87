"""Keyword arguments that become a frozen object of options."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, TypeVar

from radixserve.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Mapping

OptionsT = TypeVar("OptionsT")


def from_keywords(kind: type[OptionsT], fields: Mapping[str, Any], what: str) -> OptionsT:
    """Return `kind` made of keyword arguments.

    Args:
        kind: A dataclass.
        what: The function that got them, for the message.
    Raises:
        InvalidRequestError: `kind` has no such field; the message names those that it has.
    """
    known = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for name in fields:
        if name not in known:
            raise InvalidRequestError(
                f"{what} has no option {name!r}; it has {', '.join(sorted(known))}", param=name
            )
    return kind(**fields)
