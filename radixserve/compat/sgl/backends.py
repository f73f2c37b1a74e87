"""SGLang's names for where programs run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve.frontend.connect import connect, embedded, openai
from radixserve.frontend.default_backend import current_backend

if TYPE_CHECKING:
    from radixserve.frontend.backends.embedded import EmbeddedBackend
    from radixserve.frontend.backends.openai import OpenAIBackend
    from radixserve.frontend.backends.protocol import Backend
    from radixserve.frontend.backends.remote import RemoteBackend

_default: list[Backend] = []
"""One at most. For all threads: a program runs in whichever has room."""


def set_default_backend(backend: Backend) -> None:
    """Let programs that name no backend run on this one."""
    _default[:] = [backend]


def default_backend() -> Backend:
    """Return the backend of programs that name none; the default model's in this process."""
    return _default[0] if _default else current_backend()


def RuntimeEndpoint(base_url: str, api_key: str | None = None) -> RemoteBackend:
    """Return a running radixserve."""
    return connect(base_url, api_key)


def Runtime(model_path: str | None = None) -> EmbeddedBackend:
    """Return an engine in this process."""
    return embedded(model_path)


def OpenAI(
    model_name: str, *, base_url: str = "https://api.openai.com", api_key: str | None = None
) -> OpenAIBackend:
    """Return a model behind an OpenAI-compatible API."""
    return openai(base_url, model_name, api_key)
