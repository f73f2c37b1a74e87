"""Which backend a program uses that names none."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from radixserve.frontend.backends.protocol import Backend

_chosen: ContextVar[Backend | None] = ContextVar("radixserve_backend", default=None)
_embedded: list[Backend] = []
"""The default model in this process, made at first use."""


class Use:
    """`rs.use(backend)`: for all that follows in this context, or for a ``with`` block."""

    def __init__(self, backend: Backend) -> None:
        self._token = _chosen.set(backend)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exc: object) -> None:
        _chosen.reset(self._token)


def current_backend() -> Backend:
    """Return the backend of this context: the one chosen by `use`, else the default model's."""
    chosen = _chosen.get()
    if chosen is not None:
        return chosen
    if not _embedded:
        from radixserve.frontend.backends.embedded import EmbeddedBackend

        _embedded.append(EmbeddedBackend())
    return _embedded[0]
