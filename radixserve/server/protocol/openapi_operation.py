"""One route, as ``/openapi.json`` tells of it."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from radixserve.server.protocol import openapi_answers as answers

if TYPE_CHECKING:
    from pydantic import BaseModel


class Access(enum.Enum):
    """Whom a route serves where API keys are set."""

    ANYBODY = "anybody"
    CALLERS = "callers"
    ADMINS = "admins"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one path.

    Attributes:
        answer: What a success brings; None brings plain text.
        is_listed: Whether several prompts bring a list of answers.
        streams: Whether the answer may come as server-sent events.
        media: What a success is, where it brings no JSON.
        takes_form: Whether the body is a form.
        needs_body: Whether there must be a body, where there may be one.
    """

    method: str
    path: str
    tag: str
    summary: str
    body: type[BaseModel] | None = None
    query: type[BaseModel] | None = None
    answer: type[BaseModel] | None
    is_listed: bool = False
    streams: bool = False
    media: str = "text/plain"
    takes_form: bool = False
    needs_body: bool = True
    access: Access = Access.CALLERS
    error: type[BaseModel] = answers.Error


def post_operation(
    path: str, tag: str, summary: str, body: type[BaseModel], answer: type[BaseModel]
) -> Operation:
    """Return a POST with a JSON body and a JSON answer."""
    return Operation(method="post", path=path, tag=tag, summary=summary, body=body, answer=answer)
