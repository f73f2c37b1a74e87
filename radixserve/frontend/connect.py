"""The ways to a model, by one word each.

rs.use(rs.embedded())                             the default model in this process
rs.use(rs.connect("http://127.0.0.1:8000"))       a running radixserve
rs.use(rs.openai("http://127.0.0.1:9000", "m"))   any OpenAI-compatible server
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from radixserve.config import EngineConfig
from radixserve.frontend.backends.embedded import EmbeddedBackend
from radixserve.frontend.backends.openai import OpenAIBackend
from radixserve.frontend.backends.remote import RemoteBackend
from radixserve.frontend.default_backend import Use

if TYPE_CHECKING:
    from radixserve.frontend.backends.protocol import Backend


def embedded(
    model: str | None = None, *, config: EngineConfig | None = None, sends_hints: bool = True
) -> EmbeddedBackend:
    """Return an engine in this process, loaded at its first use.

    Args:
        model: A folder, a GGUF file, a hub id; the default model when None.
        config: All the settings; `model` replaces the one in it.
        sends_hints: Whether the engine is told what a program knows of the future.
    """
    config = config or EngineConfig()
    if model is not None:
        config = replace(config, model=replace(config.model, model=model))
    return EmbeddedBackend(config=config, sends_hints=sends_hints)


def connect(url: str, token: str | None = None, *, sends_hints: bool = True) -> RemoteBackend:
    """Return a running radixserve.

    Args:
        url: Its address, such as ``http://127.0.0.1:8000``.
        token: An API key, where it asks for one.
        sends_hints: Whether it is told what a program knows of the future.
    """
    return RemoteBackend(url, token, sends_hints=sends_hints)


def openai(
    url: str,
    model: str | None = None,
    api_key: str | None = None,
    *,
    continues_turns: bool = False,
) -> OpenAIBackend:
    """Return a server with an OpenAI-compatible API; see `OpenAIBackend` for what it cannot do.

    Args:
        url: Its address, with or without a closing ``/v1``.
        model: The model to ask; the first that it lists when None.
        api_key: Where it asks for one.
        continues_turns: Whether it goes on with an assistant's turn that has begun.
    """
    return OpenAIBackend(url, model, api_key, continues_turns=continues_turns)


def use(backend: Backend) -> Use:
    """Let programs that name no backend run on this one: from now on in this context, or for a
    ``with`` block."""
    return Use(backend)
