"""radixserve: an LLM server whose KV cache is a radix tree.

    import radixserve

    engine = radixserve.Engine(model="smollm2-135m-instruct")
    [completion] = engine.generate("The capital of France is")

and prompt programs on it, or on a server:

    @radixserve.program
    async def classify(p, review: str) -> str:
        p += f"Review: {review}\\nLabel: "
        return await p.select("label", ["pos", "neg"])

Importing this package loads neither torch nor transformers nor aiohttp: the names of the engine and
of the frontend are looked up when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from radixserve.config import (
    AttentionConfig,
    CacheConfig,
    EngineConfig,
    HttpConfig,
    KeyConfig,
    ModelConfig,
    ObserveConfig,
    SchedulerConfig,
    ServerConfig,
)
from radixserve.core.eviction.hints import Ending, Keep, ReleaseHint
from radixserve.errors import (
    AuthenticationError,
    BackendError,
    BackendUnavailableError,
    BatchError,
    BudgetExceededError,
    ConfigError,
    EngineDeadError,
    ForkNotFoundError,
    GrammarLimitError,
    IncompleteError,
    InvalidRequestError,
    InvariantError,
    ModelLoadError,
    ModelNotFoundError,
    PermissionDeniedError,
    PinNotFoundError,
    PinRefusedError,
    ProgramError,
    PromptTooLongError,
    QueueFullError,
    RadixServeError,
    ReplayMismatchError,
    RequestAbortedError,
    RequestError,
    RequestTimeoutError,
    RequestTooLargeError,
    RoleError,
    ShuttingDownError,
    StepLimitError,
    StoredObjectBusyError,
    StoredObjectNotFoundError,
    UnsupportedByBackendError,
    UnsupportedFeatureError,
    UnsupportedGrammarError,
    ValidationFailedError,
)
from radixserve.types import FinishReason, SamplingParams

if TYPE_CHECKING:
    from radixserve.engine.async_engine import AsyncEngine
    from radixserve.engine.request import GenerateRequest
    from radixserve.engine.sync_engine import Engine
    from radixserve.frontend.act import Stop
    from radixserve.frontend.backends.embedded import EmbeddedBackend
    from radixserve.frontend.backends.openai import OpenAIBackend
    from radixserve.frontend.backends.protocol import Capability
    from radixserve.frontend.backends.remote import RemoteBackend
    from radixserve.frontend.choice import Choice
    from radixserve.frontend.connect import connect, embedded, openai, use
    from radixserve.frontend.events import (
        Delta,
        Partial,
        Restart,
        Result,
        ToolEnd,
        ToolStart,
        Value,
    )
    from radixserve.frontend.program import Program, program
    from radixserve.frontend.prompt import Prompt
    from radixserve.frontend.record import record, replay
    from radixserve.frontend.report import Report
    from radixserve.frontend.scores import Score
    from radixserve.frontend.session import session

__version__ = "0.1.0"

__all__ = [
    "AsyncEngine",
    "AttentionConfig",
    "AuthenticationError",
    "BackendError",
    "BackendUnavailableError",
    "BatchError",
    "BudgetExceededError",
    "CacheConfig",
    "Capability",
    "Choice",
    "ConfigError",
    "Delta",
    "EmbeddedBackend",
    "Ending",
    "Engine",
    "EngineConfig",
    "EngineDeadError",
    "FinishReason",
    "ForkNotFoundError",
    "GenerateRequest",
    "GrammarLimitError",
    "HttpConfig",
    "IncompleteError",
    "InvalidRequestError",
    "InvariantError",
    "Keep",
    "KeyConfig",
    "ModelConfig",
    "ModelLoadError",
    "ModelNotFoundError",
    "ObserveConfig",
    "OpenAIBackend",
    "Partial",
    "PermissionDeniedError",
    "PinNotFoundError",
    "PinRefusedError",
    "Program",
    "ProgramError",
    "Prompt",
    "PromptTooLongError",
    "QueueFullError",
    "RadixServeError",
    "ReleaseHint",
    "RemoteBackend",
    "ReplayMismatchError",
    "Report",
    "RequestAbortedError",
    "RequestError",
    "RequestTimeoutError",
    "RequestTooLargeError",
    "Restart",
    "Result",
    "RoleError",
    "SamplingParams",
    "SchedulerConfig",
    "Score",
    "ServerConfig",
    "ShuttingDownError",
    "StepLimitError",
    "Stop",
    "StoredObjectBusyError",
    "StoredObjectNotFoundError",
    "ToolEnd",
    "ToolStart",
    "UnsupportedByBackendError",
    "UnsupportedFeatureError",
    "UnsupportedGrammarError",
    "ValidationFailedError",
    "Value",
    "__version__",
    "connect",
    "embedded",
    "openai",
    "program",
    "record",
    "replay",
    "session",
    "use",
]

_LAZY_HOMES = {
    "AsyncEngine": "radixserve.engine.async_engine",
    "Capability": "radixserve.frontend.backends.protocol",
    "Choice": "radixserve.frontend.choice",
    "Delta": "radixserve.frontend.events",
    "EmbeddedBackend": "radixserve.frontend.backends.embedded",
    "Engine": "radixserve.engine.sync_engine",
    "GenerateRequest": "radixserve.engine.request",
    "OpenAIBackend": "radixserve.frontend.backends.openai",
    "Partial": "radixserve.frontend.events",
    "Program": "radixserve.frontend.program",
    "Prompt": "radixserve.frontend.prompt",
    "RemoteBackend": "radixserve.frontend.backends.remote",
    "Report": "radixserve.frontend.report",
    "Restart": "radixserve.frontend.events",
    "Result": "radixserve.frontend.events",
    "Score": "radixserve.frontend.scores",
    "Stop": "radixserve.frontend.act",
    "ToolEnd": "radixserve.frontend.events",
    "ToolStart": "radixserve.frontend.events",
    "Value": "radixserve.frontend.events",
    "connect": "radixserve.frontend.connect",
    "embedded": "radixserve.frontend.connect",
    "openai": "radixserve.frontend.connect",
    "program": "radixserve.frontend.program",
    "record": "radixserve.frontend.record",
    "replay": "radixserve.frontend.record",
    "session": "radixserve.frontend.session",
    "use": "radixserve.frontend.connect",
}


def __getattr__(name: str) -> object:
    home = _LAZY_HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
