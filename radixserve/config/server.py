"""All settings of `radixserve serve`."""

from __future__ import annotations

from dataclasses import dataclass, field

from radixserve.config.engine import EngineConfig
from radixserve.config.http import HttpConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Everything `radixserve serve` needs."""

    engine: EngineConfig = field(default_factory=EngineConfig)
    http: HttpConfig = field(default_factory=HttpConfig)
