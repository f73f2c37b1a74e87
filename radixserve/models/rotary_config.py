"""Which rotary embedding a config.json asks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from radixserve.errors import ModelLoadError

if TYPE_CHECKING:
    from collections.abc import Mapping

RotaryKind: TypeAlias = Literal["default", "linear", "llama3", "yarn"]

_DEFAULT_THETA = 10000.0
_REFUSED = {
    "dynamic": "its angles change with a sequence's length, so cached keys could not be reused",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RotarySpec:
    """A rotary embedding's frequencies, before they are computed.

    Fields that a kind does not use keep their defaults.
    """

    kind: RotaryKind = "default"
    theta: float = _DEFAULT_THETA
    factor: float = 1.0
    """How much longer than in training positions may become."""
    original_max_position: int = 0
    """Tokens of context in training (llama3, yarn)."""
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    """Multiplies cos and sin (yarn); derived from `factor` when None."""
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    """Whether the borders of yarn's ramp are rounded to whole dimensions."""


def parse_rotary(config: Mapping[str, Any]) -> RotarySpec:
    """Return the rotary embedding that `config` asks for.

    Both layouts are read: `rope_theta` with `rope_scaling` (kind under `rope_type` or `type`), and
    `rope_parameters`.

    Raises:
        ModelLoadError: the kind is unknown or refused, or a setting of it is missing.
    Source: ml-explore/mlx-examples#909 (a loader that knew one key only; others took an unknown
        kind for none).
    """
    settings = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if any(isinstance(value, dict) for value in settings.values()):
        raise ModelLoadError("config.json: rope_parameters that differ by layer are not supported")
    if _setting(config, settings, "partial_rotary_factor", 1.0) != 1.0:
        raise ModelLoadError("config.json: partial_rotary_factor other than 1 is not supported")
    kind = _kind(settings)
    theta = float(_setting(config, settings, "rope_theta", _DEFAULT_THETA))
    match kind:
        case "default":
            return RotarySpec(theta=theta)
        case "linear":
            return RotarySpec(kind=kind, theta=theta, factor=_number(settings, "factor", kind))
        case "llama3":
            return _llama3(config, settings, theta)
        case "yarn":
            return _yarn(config, settings, theta)


def _kind(settings: Mapping[str, Any]) -> RotaryKind:
    kind = str(settings.get("rope_type", settings.get("type", "default")))
    for known in get_args(RotaryKind):
        if kind == known:
            return known  # type: ignore[no-any-return]
    reason = _REFUSED.get(kind, f"known are {', '.join(get_args(RotaryKind))}")
    raise ModelLoadError(f"config.json: rope_type '{kind}' is not supported: {reason}")


def _llama3(config: Mapping[str, Any], settings: Mapping[str, Any], theta: float) -> RotarySpec:
    return RotarySpec(
        kind="llama3",
        theta=theta,
        factor=_number(settings, "factor", "llama3"),
        low_freq_factor=_number(settings, "low_freq_factor", "llama3"),
        high_freq_factor=_number(settings, "high_freq_factor", "llama3"),
        original_max_position=_original_max_position(config, settings),
    )


def _yarn(config: Mapping[str, Any], settings: Mapping[str, Any], theta: float) -> RotarySpec:
    return RotarySpec(
        kind="yarn",
        theta=theta,
        factor=_number(settings, "factor", "yarn"),
        original_max_position=_original_max_position(config, settings),
        beta_fast=float(settings.get("beta_fast") or 32.0),
        beta_slow=float(settings.get("beta_slow") or 1.0),
        attention_factor=_optional_number(settings, "attention_factor"),
        mscale=_optional_number(settings, "mscale"),
        mscale_all_dim=_optional_number(settings, "mscale_all_dim"),
        truncate=bool(settings.get("truncate", True)),
    )


def _original_max_position(config: Mapping[str, Any], settings: Mapping[str, Any]) -> int:
    key = "original_max_position_embeddings"
    inside = settings.get(key, config.get("max_position_embeddings", 0))
    return int(config.get(key) or inside)


def _setting(
    config: Mapping[str, Any], settings: Mapping[str, Any], key: str, default: float
) -> float:
    value = settings.get(key, config.get(key))
    return default if value is None else float(value)


def _number(settings: Mapping[str, Any], key: str, kind: str) -> float:
    value = _optional_number(settings, key)
    if value is None:
        raise ModelLoadError(f"config.json: rope_type '{kind}' needs '{key}'")
    return value


def _optional_number(settings: Mapping[str, Any], key: str) -> float | None:
    value = settings.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ModelLoadError(f"config.json: rotary setting '{key}' must be a number, not {value!r}")
    return float(value)
