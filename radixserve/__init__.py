"""radixserve: an LLM server whose KV cache is a radix tree.

    import radixserve

    engine = radixserve.Engine(model="smollm2-135m-instruct")
    [completion] = engine.generate("The capital of France is")

Importing this package loads neither torch nor transformers: the engine's names are looked up when
they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from radixserve.config import (
    AttentionConfig,
    CacheConfig,
    EngineConfig,
    HttpConfig,
    ModelConfig,
    SchedulerConfig,
    ServerConfig,
)
from radixserve.core.eviction.hints import Ending, Keep, ReleaseHint
from radixserve.errors import (
    AuthenticationError,
    BackendError,
    BackendUnavailableError,
    ConfigError,
    EngineDeadError,
    InvalidRequestError,
    InvariantError,
    ModelLoadError,
    ModelNotFoundError,
    PromptTooLongError,
    QueueFullError,
    RadixServeError,
    RequestAbortedError,
    RequestError,
    RequestTimeoutError,
    RequestTooLargeError,
    ShuttingDownError,
    UnsupportedFeatureError,
)
from radixserve.types import FinishReason, SamplingParams

if TYPE_CHECKING:
    from radixserve.engine.async_engine import AsyncEngine
    from radixserve.engine.request import GenerateRequest
    from radixserve.engine.sync_engine import Engine

__version__ = "0.1.0"

__all__ = [
    "AsyncEngine",
    "AttentionConfig",
    "AuthenticationError",
    "BackendError",
    "BackendUnavailableError",
    "CacheConfig",
    "ConfigError",
    "Ending",
    "Engine",
    "EngineConfig",
    "EngineDeadError",
    "FinishReason",
    "GenerateRequest",
    "HttpConfig",
    "InvalidRequestError",
    "InvariantError",
    "Keep",
    "ModelConfig",
    "ModelLoadError",
    "ModelNotFoundError",
    "PromptTooLongError",
    "QueueFullError",
    "RadixServeError",
    "ReleaseHint",
    "RequestAbortedError",
    "RequestError",
    "RequestTimeoutError",
    "RequestTooLargeError",
    "SamplingParams",
    "SchedulerConfig",
    "ServerConfig",
    "ShuttingDownError",
    "UnsupportedFeatureError",
    "__version__",
]

_LAZY_HOMES = {
    "AsyncEngine": "radixserve.engine.async_engine",
    "Engine": "radixserve.engine.sync_engine",
    "GenerateRequest": "radixserve.engine.request",
}


def __getattr__(name: str) -> object:
    home = _LAZY_HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
