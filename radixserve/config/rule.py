"""One rule about one setting."""

from __future__ import annotations

from radixserve.errors import ConfigError


def require(condition: bool, key: str, allowed: str, value: object) -> None:
    """Raise a ConfigError that names the setting and what is allowed, unless `condition` holds."""
    if not condition:
        raise ConfigError(f"{key} must be {allowed}; got {value!r}")
