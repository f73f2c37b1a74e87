"""The routes below ``/v1/files`` and ``/v1/batches``, as ``/openapi.json`` tells of them."""

from __future__ import annotations

from radixserve.server.protocol import openapi_answers as answers
from radixserve.server.protocol.batches import BatchBody, BatchesQuery
from radixserve.server.protocol.files import FileForm, FilesQuery
from radixserve.server.protocol.openapi_operation import Operation, post_operation

BATCH_OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="post",
        path="/v1/files",
        tag="batches",
        summary="Keep a file of requests.",
        body=FileForm,
        answer=answers.FileAnswer,
        takes_form=True,
    ),
    Operation(
        method="get",
        path="/v1/files",
        tag="batches",
        summary="List the caller's files.",
        query=FilesQuery,
        answer=answers.ListAnswer,
    ),
    Operation(
        method="get",
        path="/v1/files/{file_id}",
        tag="batches",
        summary="Describe a file.",
        answer=answers.FileAnswer,
    ),
    Operation(
        method="get",
        path="/v1/files/{file_id}/content",
        tag="batches",
        summary="Send a file's content.",
        answer=None,
        media="application/jsonl",
    ),
    Operation(
        method="delete",
        path="/v1/files/{file_id}",
        tag="batches",
        summary="Forget a file.",
        answer=answers.DeletedAnswer,
    ),
    post_operation(
        "/v1/batches",
        "batches",
        "Run a file of requests, after everything else.",
        BatchBody,
        answers.BatchAnswer,
    ),
    Operation(
        method="get",
        path="/v1/batches",
        tag="batches",
        summary="List the caller's batches.",
        query=BatchesQuery,
        answer=answers.ListAnswer,
    ),
    Operation(
        method="get",
        path="/v1/batches/{batch_id}",
        tag="batches",
        summary="Describe a batch.",
        answer=answers.BatchAnswer,
    ),
    Operation(
        method="post",
        path="/v1/batches/{batch_id}/cancel",
        tag="batches",
        summary="End a batch with the results that it has.",
        answer=answers.BatchAnswer,
    ),
)
