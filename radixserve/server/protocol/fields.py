"""The fields both routes share, and the way from a JSON object to a typed request."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Discriminator, Field, Tag, ValidationError

from radixserve.server.protocol.beam import MAX_BEAM_WIDTH, BeamOptions, check_beam
from radixserve.server.protocol.body import INT32_MAX, RequestBody
from radixserve.server.protocol.hints import RadixHints
from radixserve.server.protocol.refusal import INVALID_TYPE, UNKNOWN, refusal, refusal_of
from radixserve.server.protocol.structured import StructuredFields, check_structured
from radixserve.server.protocol.unbuilt import HARMLESS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from radixserve.server.protocol.unbuilt import Unbuilt

MAX_N = 128
"""Most sequences for each prompt, kept or not."""
MAX_LOGPROBS = 20
"""Most likeliest tokens told beside one."""
MAX_STOP_STRINGS = 16
MAX_STOP_STRING_LEN = 1024
"""Characters. A stop string is compared with every piece of text, so its length is bounded."""
MAX_BAD_WORDS = 128
MAX_BAD_WORD_LEN = 64
"""Characters. Both are looked at for every token, so both are bounded, as are the next two."""
MAX_ALLOWED_TOKENS = 4096
MAX_LOGIT_BIASES = 1024

TokenIdField = Annotated[int, Field(ge=0, le=INT32_MAX)]
TokenIds = Annotated[list[TokenIdField], Field(fail_fast=True)]
"""fail_fast: one error is reported, and a million wrong items must not make a million errors."""


def _none_if_false(value: Any) -> Any:
    return None if value is False else value


TopCount = Annotated[int | None, Field(ge=0, le=MAX_LOGPROBS), BeforeValidator(_none_if_false)]
"""How many likeliest tokens to tell; false is as good as null."""


def _branch_of_stop(value: Any) -> str:
    return "<list>" if isinstance(value, list) else "<string>"


StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_STRING_LEN)]
StopStringList = Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS, fail_fast=True)]
StopField = Annotated[
    Annotated[StopString, Tag("<string>")] | Annotated[StopStringList, Tag("<list>")],
    Discriminator(_branch_of_stop),
]


def _branch_of_early_stopping(value: Any) -> str:
    return "<string>" if isinstance(value, str) else "<bool>"


EarlyStoppingField = Annotated[
    Annotated[bool, Tag("<bool>")] | Annotated[Literal["never"], Tag("<string>")],
    Discriminator(_branch_of_early_stopping),
]


class StreamOptions(RequestBody):
    """What a stream tells besides its text."""

    include_usage: bool = False
    """Send one more chunk, with the usage and no choices, before the end."""
    include_obfuscation: bool = False
    """Accepted and unused: it pads events against observers of their length."""
    continuous_usage_stats: bool = False
    """Put the usage so far into every chunk."""


class GenerationFields(StructuredFields):
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
    logit_bias: dict[str, Any] = Field(default_factory=dict, max_length=MAX_LOGIT_BIASES)
    """Token id, as a string of digits, to a value from -100 to 100."""
    allowed_token_ids: (
        Annotated[
            list[TokenIdField], Field(min_length=1, max_length=MAX_ALLOWED_TOKENS, fail_fast=True)
        ]
        | None
    ) = None
    """Nothing but these, and what ends the output, is sampled."""
    bad_words: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=MAX_BAD_WORD_LEN)]],
        Field(max_length=MAX_BAD_WORDS, fail_fast=True),
    ] = Field(default_factory=list)
    """Texts whose tokens the output must not contain, at a word's start or inside one."""
    n: Annotated[int, Field(ge=1, le=MAX_N)] = 1
    """Choices for each prompt. A seed is the first one's: the others have the seeds after it."""
    prompt_logprobs: TopCount = None
    """Tell each prompt token's log-probability, and those of so many likeliest tokens."""
    prompt_logprob_start: Annotated[int, Field(ge=0, le=INT32_MAX)] = 0
    """The first prompt position told of. What is cached before it is not computed again."""
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=INT32_MAX)] | None = None
    """Keep so many of the prompt's last tokens; -1: as many as leave room for the output."""
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    """Write tokens in log-probabilities as ``token_id:<id>``."""
    use_beam_search: bool | None = None
    """Look for the likeliest outputs in place of sampling; `beam_width` alone asks for it too."""
    beam_width: Annotated[int, Field(ge=1, le=MAX_BEAM_WIDTH)] | None = None
    """Hypotheses kept at each step; `n` when left out."""
    length_penalty: Annotated[float, Field(ge=-10, le=10)] = 1.0
    """A hypothesis is worth its log-probability over its length to this power."""
    early_stopping: EarlyStoppingField = False
    min_tokens: Annotated[int, Field(ge=0, le=INT32_MAX)] = 0
    """No stop token is sampled before; a stop string ends the output at any length."""
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

    @property
    def num_siblings(self) -> int:
        """Sequences generated for each prompt."""
        return self.n

    @property
    def num_logprobs(self) -> int | None:
        """Likeliest tokens told beside each output token; None tells no log-probabilities."""
        return None

    @property
    def num_echo_logprobs(self) -> int | None:
        """The same for the prompt's tokens, where the prompt is a part of the choice."""
        return None

    @property
    def scores_only(self) -> bool:
        """Whether only the prompt is asked about, and no output is wanted."""
        return False

    @property
    def beam(self) -> BeamOptions | None:
        """How to search, if a search is asked for."""
        asked = (
            self.beam_width is not None if self.use_beam_search is None else self.use_beam_search
        )
        if not asked:
            return None
        return BeamOptions(
            width=self.beam_width or self.n,
            length_penalty=self.length_penalty,
            early_stopping=self.early_stopping,
        )


FieldsT = TypeVar("FieldsT", bound=GenerationFields)
BodyT = TypeVar("BodyT", bound=RequestBody)


def parse_fields(
    body: Any, kind: type[FieldsT], unbuilt: Mapping[str, Unbuilt], *, ignore_unknown: bool
) -> FieldsT:
    """Return the typed request that a JSON value stands for; see `parse_body` for what it raises.

    Raises:
        InvalidRequestError: also where two fields contradict each other.
    """
    parsed = parse_body(body, kind, unbuilt, ignore_unknown=ignore_unknown)
    check_together(parsed)
    return parsed


def check_together(fields: GenerationFields) -> None:
    """Refuse fields that make no sense beside each other.

    Raises:
        InvalidRequestError: names one of them.
    """
    if fields.stream_options is not None and not fields.stream:
        raise refusal("stream_options: only allowed when stream is true.", "stream_options")
    if fields.truncate_prompt_tokens == 0:
        raise refusal(
            "truncate_prompt_tokens: input should be -1 or at least 1; got 0.",
            "truncate_prompt_tokens",
        )
    check_beam(fields)
    check_structured(fields)


def parse_body(
    body: Any, kind: type[BodyT], unbuilt: Mapping[str, Unbuilt], *, ignore_unknown: bool
) -> BodyT:
    """Return the typed body that a JSON value stands for, of any route.

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
    return _validated(known, kind)


def _validated(known: dict[str, Any], kind: type[BodyT]) -> BodyT:
    try:
        return kind.model_validate(known)
    except ValidationError as failed:
        raise refusal_of(failed) from None


def _unknown(name: str, kind: type[RequestBody]) -> Exception:
    shown = name if len(name) <= 64 else name[:64] + "..."
    near = difflib.get_close_matches(shown, kind.model_fields, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    return refusal(f"Unknown parameter: {shown!r}.{hint}", shown, UNKNOWN)
