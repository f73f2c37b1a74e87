"""Fields that are known but not built, and fields that are known and change nothing.

A value that asks for nothing (``suffix: ""``, ``functions: []``) is accepted; whatever asks for
something is refused by name: an answer that ignores part of the question is worse than none.

Source: vllm #53975, where removed parameters were accepted and ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from radixserve.errors import UnsupportedFeatureError
from radixserve.server.protocol.refusal import INVALID_TYPE, refusal

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Unbuilt:
    """One field whose effect is not built.

    Attributes:
        neutral: The values that ask for nothing.
        bounds: Smallest and largest integer that the API allows, when the field is a number.
    """

    neutral: tuple[Any, ...] = (False, "", [], {})
    bounds: tuple[int, int] | None = None

    def check(self, name: str, value: Any) -> None:
        """Accept a value that asks for nothing.

        Raises:
            InvalidRequestError: the value is outside the API's own range.
            UnsupportedFeatureError: the value is good, but asks for what is not built.
        """
        if any(type(value) is type(allowed) and value == allowed for allowed in self.neutral):
            return
        if self.bounds is not None:
            _check_bounds(name, value, self.bounds)
        raise UnsupportedFeatureError(
            f"{name}: this server does not support this parameter yet; leave it out"
            f"{_or_send(self.neutral)}.",
            param=name,
        )


def _check_bounds(name: str, value: Any, bounds: tuple[int, int]) -> None:
    if type(value) is not int:
        raise refusal(f"{name}: input should be a valid integer.", name, INVALID_TYPE)
    low, high = bounds
    if not low <= value <= high:
        raise refusal(f"{name}: input should be from {low} to {high}; got {value}.", name)


def _or_send(neutral: tuple[Any, ...]) -> str:
    shown = [value for value in neutral if isinstance(value, int) and not isinstance(value, bool)]
    return f" or send {shown[0]}" if shown else ""


_ANY = Unbuilt()

_BOTH: Mapping[str, Unbuilt] = {
    "session_id": _ANY,
}

COMPLETION_UNBUILT: Mapping[str, Unbuilt] = {
    **_BOTH,
    "suffix": _ANY,
}

CHAT_UNBUILT: Mapping[str, Unbuilt] = {
    **_BOTH,
    "functions": _ANY,
    "function_call": Unbuilt(neutral=("none", "auto")),
    "modalities": Unbuilt(neutral=([], ["text"])),
    "audio": _ANY,
    "prediction": _ANY,
    "web_search_options": Unbuilt(neutral=(False,)),
    "chat_template": _ANY,
    "documents": _ANY,
    "add_special_tokens": Unbuilt(neutral=(False,)),
}

HARMLESS = frozenset(
    {
        "metadata",
        "moderation",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "reasoning_effort",
        "safety_identifier",
        "service_tier",
        "store",
        "verbosity",
    }
)
"""OpenAI's fields that describe the caller or its account, or hint at a style: accepted, unused."""
