"""Reads the form in which a file is uploaded, as it comes: nothing of it is held in memory."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from aiohttp import BodyPartReader, multipart, web

from radixserve.server.protocol.files import MAX_NAME_LEN, check_purpose
from radixserve.server.protocol.refusal import MISSING, UNKNOWN, refusal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from radixserve.server.store.files import FileStore, StoredFile

_FORM = "multipart/form-data"
_CHUNK_BYTES = 256 * 1024
_MAX_FIELD_BYTES = 1024
_MALFORMED = (
    ValueError,
    AssertionError,
    web.RequestPayloadError,
    # Warnings, which are errors where somebody has asked for that.
    multipart.BadContentDispositionHeader,
    multipart.BadContentDispositionParam,
)
"""What aiohttp raises for a form that is none."""


async def receive_form(request: web.Request, files: FileStore, *, owner: str) -> StoredFile:
    """Keep the file of a form.

    Raises:
        InvalidRequestError: the form is malformed, or has other fields than it should.
        RequestTooLargeError: the file is larger than files may be.
    """
    if request.content_type != _FORM:
        raise refusal(f"The body must be a form, {_FORM}.", None)
    file: StoredFile | None = None
    purpose: str | None = None
    try:
        with _as_refusal():
            reader = await request.multipart()
            while (part := await reader.next()) is not None:
                if not isinstance(part, BodyPartReader):
                    raise refusal("The form holds another form.", None)
                if part.name == "file" and file is None:
                    name = _shown(part.filename or "file")
                    file = await files.receive(_chunks(part), owner=owner, name=name)
                elif part.name == "purpose" and purpose is None:
                    purpose = (await _field(part)).decode("utf-8", "replace")
                else:
                    shown = _shown(str(part.name)[:64])
                    raise refusal(f"Unknown or repeated field: {shown!r}.", shown, UNKNOWN)
        check_purpose(purpose)
    except BaseException:
        if file is not None:
            await files.delete(file)
        raise
    if file is None:
        raise refusal("file: the form must have a file.", "file", MISSING)
    return file


async def _chunks(part: BodyPartReader) -> AsyncIterator[bytes]:
    while chunk := await part.read_chunk(_CHUNK_BYTES):
        yield chunk


def _shown(name: str) -> str:
    """Return a name as JSON can have it: bytes that are no text are question marks."""
    return name.encode("utf-8", "replace").decode()[:MAX_NAME_LEN]


async def _field(part: BodyPartReader) -> bytes:
    """Return a short field."""
    value = b""
    while chunk := await part.read_chunk(_MAX_FIELD_BYTES):
        value += chunk
        if len(value) > _MAX_FIELD_BYTES:
            raise refusal("A field of the form is too long.", part.name)
    return value


@contextmanager
def _as_refusal() -> Iterator[None]:
    """Turn what aiohttp says about a malformed form into a refusal."""
    try:
        yield
    except _MALFORMED:
        raise refusal("The form is malformed, or it breaks off.", None) from None
