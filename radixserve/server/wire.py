"""The connection itself: TLS, and an answer in our envelope to what is not even HTTP."""

from __future__ import annotations

import logging
import ssl
from typing import TYPE_CHECKING

from aiohttp import web

from radixserve.errors import ConfigError
from radixserve.server.errors import ErrorReply
from radixserve.server.request_id import HEADER, new_id

if TYPE_CHECKING:
    import asyncio

    from aiohttp.web_request import BaseRequest

    from radixserve.config import HttpConfig

logger = logging.getLogger(__name__)

_NO_LOG = logging.Logger("aiohttp's access log, which ours replaces", level=logging.CRITICAL)

_BAD_REQUEST = ErrorReply(
    400,
    "The request is not valid HTTP, or its first line or a header is too long.",
    "invalid_request_error",
    "invalid_http",
)
_CRASH = ErrorReply(
    500,
    "The server failed to handle this request; the server's log has the cause.",
    "internal_server_error",
    "internal_error",
)


class Connection(web.RequestHandler):
    """Serves one connection.

    What cannot be parsed is neither repeated to the client nor logged: it may hold a key.

    Args:
        server: Knows all the connections and the application.
    """

    __slots__ = ()

    def __init__(self, server: web.Server, *, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(server, loop=loop, access_log=_NO_LOG)

    def handle_error(
        self,
        request: BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Return the answer to what no handler and no middleware has seen, or has survived.

        Raises:
            ConnectionError: an answer was under way already.
        """
        if status >= 500:
            logger.error("a request failed outside of its handler", exc_info=exc)
        else:
            logger.debug("a client sent what is not HTTP")
        if request.writer.output_size > 0:
            raise ConnectionError("the answer was cut short by an error")
        response = (_CRASH if status >= 500 else _BAD_REQUEST).response(request.path)
        response.headers[HEADER] = new_id("req")
        response.force_close()
        return response


def tls_context(config: HttpConfig) -> ssl.SSLContext | None:
    """Return what encrypts connections; None where the settings name no certificate.

    Raises:
        ConfigError: the certificate or its key cannot be used.
    """
    if config.tls_cert is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(config.tls_cert, config.tls_key, password=_no_password)
    except (OSError, ValueError) as failed:  # SSLError is an OSError
        why = failed.strerror if isinstance(failed, OSError) else failed
        raise ConfigError(
            f"tls_cert {config.tls_cert} and tls_key {config.tls_key} cannot be used: {why}"
        ) from None
    return context


def _no_password() -> str:
    raise ValueError("the key has a password, and nobody could be asked for it")
