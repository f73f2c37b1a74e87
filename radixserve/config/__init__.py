"""Settings: frozen dataclasses that contain one another.

    ServerConfig
      engine: EngineConfig
        model: ModelConfig          which weights, in which precision
        cache: CacheConfig          the KV pool and the tree over it
        scheduler: SchedulerConfig  how many Reqs and tokens share a step
        attention: AttentionConfig  which kernels
          cascade: CascadeConfig    what is read once for several requests
      http: HttpConfig              address, limits
        keys: KeyConfig             who may ask
        observe: ObserveConfig      logs, metrics, traces

A class receives only its own part. `None` means "choose for me"; whoever owns the knowledge (the
loader for the dtype, `runtime.memory` for the pool) fills it in and says so in the log.
"""

from __future__ import annotations

from radixserve.config.engine import (
    DEFAULT_MODEL,
    AttentionConfig,
    CacheConfig,
    CascadeConfig,
    EngineConfig,
    ModelConfig,
    SchedulerConfig,
)
from radixserve.config.http import HttpConfig, KeyConfig, ObserveConfig
from radixserve.config.server import ServerConfig

__all__ = [
    "DEFAULT_MODEL",
    "AttentionConfig",
    "CacheConfig",
    "CascadeConfig",
    "EngineConfig",
    "HttpConfig",
    "KeyConfig",
    "ModelConfig",
    "ObserveConfig",
    "SchedulerConfig",
    "ServerConfig",
]
