"""The fields both routes share, and the way from a JSON object to a typed request."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import Discriminator, Field, Tag, ValidationError

from radixserve.server.protocol.body import INT32_MAX, RequestBody
from radixserve.server.protocol.hints import RadixHints
from radixserve.server.protocol.refusal import INVALID_TYPE, UNKNOWN, refusal, refusal_of
from radixserve.server.protocol.unbuilt import HARMLESS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from radixserve.server.protocol.unbuilt import Unbuilt

MAX_STOP_STRINGS = 16
MAX_STOP_STRING_LEN = 1024
"""Characters. A stop string is compared with every piece of text, so its length is bounded."""

TokenIdField = Annotated[int, Field(ge=0, le=INT32_MAX)]
TokenIds = Annotated[list[TokenIdField], Field(fail_fast=True)]
"""fail_fast: one error is reported, and a million wrong items must not make a million errors."""


def _branch_of_stop(value: Any) -> str:
    return "<list>" if isinstance(value, list) else "<string>"


StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_STRING_LEN)]
StopStringList = Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS, fail_fast=True)]
StopField = Annotated[
    Annotated[StopString, Tag("<string>")] | Annotated[StopStringList, Tag("<list>")],
    Discriminator(_branch_of_stop),
]


class StreamOptions(RequestBody):
    """What a stream tells besides its text."""

    include_usage: bool = False
    """Send one more chunk, with the usage and no choices, before the end."""
    include_obfuscation: bool = False
    """Accepted and unused: it pads events against observers of their length."""
    continuous_usage_stats: Literal[False] = False


class GenerationFields(RequestBody):
    """The fields that completions and chat completions have in common.

    JSON `null` means the same as leaving a field out, so defaults live here and nowhere else.
    """

    model: str | None = None
    """The served model when left out."""
    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=-1, le=INT32_MAX)] = 0
    """0 and -1 are off."""
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] = 1.0
    logit_bias: dict[str, Any] = Field(default_factory=dict)
    """Token id, as a string of digits, to a value from -100 to 100."""
    min_tokens: Annotated[int, Field(ge=0, le=INT32_MAX)] = 0
    stop: StopField = Field(default_factory=list)
    stop_token_ids: Annotated[list[TokenIdField], Field(max_length=1024, fail_fast=True)] = Field(
        default_factory=list
    )
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    priority: Annotated[int, Field(ge=-INT32_MAX, le=INT32_MAX)] = 0
    """Higher goes first."""
    cache_salt: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    """Requests share cached prefixes only with requests of the same salt."""

    timeout_s: Annotated[float, Field(gt=0, le=86_400)] | None = None
    """Seconds after which the request ends: with an error if it is still waiting, else with what
    it has."""
    radix: RadixHints = Field(default_factory=RadixHints)
    """What is known of the request's future: see `hints`."""
    user: Annotated[str, Field(max_length=1024)] | None = None
    """Whom the work is counted for by the scheduling policy `fair`."""

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The stop strings as a tuple, whichever way they were written."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def include_usage(self) -> bool:
        """Whether the stream ends with a usage chunk."""
        return self.stream_options is not None and self.stream_options.include_usage


BodyT = TypeVar("BodyT", bound=GenerationFields)


def parse_fields(
    body: Any, kind: type[BodyT], unbuilt: Mapping[str, Unbuilt], *, ignore_unknown: bool
) -> BodyT:
    """Return the typed request that a JSON value stands for.

    Raises:
        InvalidRequestError: names the first field at fault.
        UnsupportedFeatureError: names a field that asks for what is not built.
    """
    if not isinstance(body, dict):
        raise refusal("The body must be a JSON object.", None, INVALID_TYPE)
    given = {name: value for name, value in body.items() if value is not None}
    known: dict[str, Any] = {}
    for name, value in given.items():
        if name in kind.model_fields:
            known[name] = value
        elif name in unbuilt:
            unbuilt[name].check(name, value)
        elif name not in HARMLESS and not ignore_unknown:
            raise _unknown(name, kind)
    parsed = _validated(known, kind)
    if parsed.stream_options is not None and not parsed.stream:
        raise refusal("stream_options: only allowed when stream is true.", "stream_options")
    return parsed


def _validated(known: dict[str, Any], kind: type[BodyT]) -> BodyT:
    try:
        return kind.model_validate(known)
    except ValidationError as failed:
        raise refusal_of(failed) from None


def _unknown(name: str, kind: type[GenerationFields]) -> Exception:
    shown = name if len(name) <= 64 else name[:64] + "..."
    near = difflib.get_close_matches(shown, kind.model_fields, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    return refusal(f"Unknown parameter: {shown!r}.{hint}", shown, UNKNOWN)
