"""One line of an output file: what became of a request.

    {"id": "batch_req_...", "custom_id": "a", "response": {"status_code": 200, "request_id": ...,
     "body": {...}}, "error": null}

`response` is what the route answered, an error's status and body included. `error` says why there
is none: the line is at fault (then it has the line's number), or nobody could be reached.

Source: platform.openai.com/docs/api-reference/batch/request-output.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from radixserve.batch.line import fault_key, result_key

if TYPE_CHECKING:
    from radixserve.batch.line import BatchLine, LineFault

Record: TypeAlias = "dict[str, Any]"


@dataclass(frozen=True, slots=True)
class Reply:
    """What a route answered."""

    status: int
    request_id: str
    body: Any
    """The JSON value, or text where it was none."""
    retry_after_s: float | None = None
    """When the server wants to be asked again."""

    @property
    def is_ok(self) -> bool:
        """Whether this is the answer that was asked for."""
        return 200 <= self.status < 300


def reply_record(line: BatchLine, reply: Reply) -> Record:
    """Return the record of a request that was answered."""
    response = {"status_code": reply.status, "request_id": reply.request_id, "body": reply.body}
    return _record(line.custom_id, response, None)


def error_record(line: BatchLine, code: str, message: str) -> Record:
    """Return the record of a request that was not answered."""
    return _record(line.custom_id, None, {"code": code, "message": message})


def fault_record(fault: LineFault) -> Record:
    """Return the record of a line that cannot be run."""
    error = {
        "code": fault.code,
        "message": fault.message,
        "param": fault.param,
        "line": fault.number,
    }
    return _record(fault.custom_id, None, error)


def _record(custom_id: str | None, response: Record | None, error: Record | None) -> Record:
    record_id = f"batch_req_{uuid.uuid4().hex}"
    return {"id": record_id, "custom_id": custom_id, "response": response, "error": error}


def is_ok(record: Record) -> bool:
    """Whether a record holds the answer that was asked for."""
    response = record["response"]
    return response is not None and 200 <= int(response["status_code"]) < 300


def key_of(record: Any) -> str:
    """Return what a record is known by: see `BatchLine.key` and `LineFault.key`.

    Raises:
        ValueError: it is no record.
    """
    if not isinstance(record, dict) or not {"custom_id", "response", "error"} <= set(record):
        raise ValueError("it is not the result of a batch")
    error, custom_id = record["error"], record["custom_id"]
    if isinstance(error, dict) and isinstance(error.get("line"), int):
        return fault_key(error["line"])
    if not isinstance(custom_id, str):
        raise ValueError("it has no custom_id")
    return result_key(custom_id)
