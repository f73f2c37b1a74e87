"""The body of ``POST /generate``: text or token ids in, text and token ids out, one or many.

    {"text": "Once", "sampling_params": {"max_new_tokens": 8, "temperature": 0}}
    {"input_ids": [[1, 2], [3]], "return_logprob": true, "stream": true}

`sampling_params` takes the names of `fields.GenerationFields` and, for the same things, SGLang's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Discriminator, Field, Tag

from radixserve.errors import InvalidRequestError
from radixserve.server.protocol.body import INT32_MAX, RequestBody, one_of
from radixserve.server.protocol.completions import (
    MAX_PROMPTS,
    CompletionRequest,
    IdPrompts,
    NonEmptyIds,
    TextPrompts,
    parse_completion,
)
from radixserve.server.protocol.fields import MAX_LOGPROBS, GenerationFields, parse_body
from radixserve.server.protocol.hints import ForkHint, GenerateHints
from radixserve.server.protocol.refusal import MISSING, UNKNOWN, refusal
from radixserve.server.protocol.unbuilt import Unbuilt

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_NEW_TOKENS = 128
MAX_FORGOTTEN = 10_000

OUR_NAMES: Mapping[str, str] = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "no_stop_trim": "include_stop_str_in_output",
    "sampling_seed": "seed",
}
"""SGLang's names of sampling parameters, and this server's."""

_OUTSIDE = frozenset(
    {
        "model",
        "stream",
        "stream_options",
        "prompt_logprobs",
        "prompt_logprob_start",
        "truncate_prompt_tokens",
        "return_token_ids",
        "return_tokens_as_token_ids",
        "priority",
        "cache_salt",
        "timeout_s",
        "radix",
        "user",
        "use_beam_search",
        "beam_width",
        "length_penalty",
        "early_stopping",
    }
)
"""Fields of a completion that are no sampling parameters here."""

GENERATE_UNBUILT = {
    name: Unbuilt()
    for name in (
        "audio_data",
        "custom_logit_processor",
        "image_data",
        "input_embeds",
        "lora_path",
        "return_hidden_states",
        "session_params",
        "token_ids_logprob",
        "video_data",
    )
}


def _branch_of_texts(value: Any) -> str:
    return "<texts>" if isinstance(value, list) else "<text>"


def _branch_of_ids(value: Any) -> str:
    is_nested = isinstance(value, list) and value and isinstance(value[0], list)
    return "<id_lists>" if is_nested else "<ids>"


TextField = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[TextPrompts, Tag("<texts>")],
    Discriminator(_branch_of_texts),
]
IdsField = Annotated[
    Annotated[NonEmptyIds, Tag("<ids>")] | Annotated[IdPrompts, Tag("<id_lists>")],
    Discriminator(_branch_of_ids),
]
Name = Annotated[str, Field(min_length=1, max_length=128)]
RidField = Annotated[
    Annotated[Name, Tag("<text>")]
    | Annotated[list[Name], Tag("<texts>"), Field(max_length=MAX_PROMPTS, fail_fast=True)],
    Discriminator(_branch_of_texts),
]


class GenerateBody(RequestBody):
    """One call of ``POST /generate``."""

    model_config = one_of("text", "input_ids")
    model: str | None = None
    """The served model when left out."""
    text: TextField | None = None
    input_ids: IdsField | None = None
    sampling_params: dict[str, Any] = Field(default_factory=dict)
    stream: bool = False
    """Events tell what is new since the last one."""
    return_logprob: bool = False
    logprob_start_len: Annotated[int, Field(ge=-1, le=INT32_MAX)] = -1
    """The first prompt position whose log-probability is told; -1: none, only the output's."""
    top_logprobs_num: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] = 0
    return_text_in_logprobs: bool = False
    rid: RidField | None = None
    """Names of the requests, one for each prompt; made up when left out."""
    priority: Annotated[int, Field(ge=-INT32_MAX, le=INT32_MAX)] = 0
    cache_salt: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    extra_key: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    """The same by SGLang's name."""
    timeout_s: Annotated[float, Field(gt=0, le=86_400)] | None = None
    user: Annotated[str, Field(max_length=1024)] | None = None
    radix: GenerateHints = Field(default_factory=GenerateHints)

    @property
    def prompt_name(self) -> str:
        """The field that holds the prompts."""
        return "input_ids" if self.text is None else "text"

    @property
    def is_batch(self) -> bool:
        """Whether the answer is a list, whatever its length."""
        prompts = self.input_ids if self.text is None else self.text
        return isinstance(prompts, list) and not isinstance(prompts[0], int)

    @property
    def salt(self) -> str | None:
        """The cache's salt, under either name."""
        return self.cache_salt or self.extra_key


NO_FORK = ForkHint()


class GenerateCall:
    """A body together with the completion that asks for the same.

    Args:
        body: As it came.
        completion: In the words of ``/v1/completions``.
    """

    def __init__(self, body: GenerateBody, completion: CompletionRequest) -> None:
        self.body = body
        self.completion = completion

    @property
    def fork(self) -> ForkHint:
        """What the call goes on from, and the name it is kept under."""
        return self.body.radix.fork or NO_FORK

    def names(self, made_up: str) -> list[str]:
        """Return the names of the requests, `n` for each prompt.

        Args:
            made_up: What those begin with that the caller has not named.
        """
        n, rid = self.completion.n, self.body.rid
        if isinstance(rid, list):
            firsts = rid
        else:
            first, count = rid or made_up, len(self.completion.prompts)
            firsts = [first] if count == 1 else [f"{first}-{index}" for index in range(count)]
        return firsts if n == 1 else [f"{name}-{place}" for name in firsts for place in range(n)]


def parse_generate(body: Any, *, ignore_unknown: bool = False) -> GenerateCall:
    """Return the typed call; see `parse_body` for what it raises.

    Raises:
        InvalidRequestError: also where two fields contradict each other.
    """
    parsed = parse_body(body, GenerateBody, GENERATE_UNBUILT, ignore_unknown=ignore_unknown)
    if parsed.text is None and parsed.input_ids is None:
        raise refusal("text: field required, unless input_ids is sent.", "text", MISSING)
    if parsed.text is not None and parsed.input_ids is not None:
        raise refusal("text and input_ids exclude each other; send one.", "input_ids")
    if None not in (parsed.cache_salt, parsed.extra_key) and parsed.cache_salt != parsed.extra_key:
        raise refusal("cache_salt and extra_key differ; send one.", "extra_key")
    call = GenerateCall(parsed, _completion_of(parsed, ignore_unknown=ignore_unknown))
    if isinstance(parsed.rid, list) and len(parsed.rid) != len(call.completion.prompts):
        raise refusal("rid: there must be as many names as prompts.", "rid")
    _check_fork(call)
    return call


def _check_fork(call: GenerateCall) -> None:
    body = call.body
    if body.radix.fork is None:
        return
    if body.is_batch or call.completion.num_siblings > 1:
        raise refusal("radix.fork: only allowed with one prompt and one output.", "radix.fork")
    if call.fork.parent is not None and body.input_ids is None:
        raise refusal("radix.fork.parent: only allowed with input_ids.", "radix.fork.parent")


class ForgetBody(RequestBody):
    """One call of ``POST /generate/forget``."""

    ids: Annotated[list[Name], Field(max_length=MAX_FORGOTTEN, fail_fast=True)]
    """Names of the caller's own calls; others are ignored."""
    is_end: bool = False
    """Whether nobody will come back to their paths: what is theirs alone is evicted first."""


def parse_forget(body: Any, *, ignore_unknown: bool = False) -> ForgetBody:
    """Return the typed call; see `parse_body` for what it raises."""
    return parse_body(body, ForgetBody, {}, ignore_unknown=ignore_unknown)


def _completion_of(body: GenerateBody, *, ignore_unknown: bool) -> CompletionRequest:
    asked = {
        **_sampling_of(body.sampling_params),
        "prompt": body.input_ids if body.text is None else body.text,
        "stream": body.stream,
        "priority": body.priority,
        "cache_salt": body.salt,
        "timeout_s": body.timeout_s,
        "user": body.user,
        "radix": body.radix.model_dump(exclude={"fork"}),
    }
    if body.return_logprob:
        asked["logprobs"] = body.top_logprobs_num
    if body.return_logprob and body.logprob_start_len >= 0:
        asked["prompt_logprobs"] = body.top_logprobs_num
        asked["prompt_logprob_start"] = body.logprob_start_len
    try:
        return parse_completion(asked, ignore_unknown=ignore_unknown)
    except InvalidRequestError as refused:
        raise _in_callers_words(refused, body) from None


def _sampling_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return sampling parameters under this server's names.

    Raises:
        InvalidRequestError: a name is no sampling parameter, or one thing is said twice.
    """
    ours: dict[str, Any] = {}
    for name, value in given.items():
        our_name = OUR_NAMES.get(name, name)
        is_known = our_name in GenerationFields.model_fields or our_name == "max_tokens"
        if our_name in _OUTSIDE or not is_known:
            shown = f"sampling_params.{name[:64]}"
            raise refusal(f"Unknown parameter: {shown!r}.", shown, UNKNOWN)
        if our_name in ours:
            raise refusal(
                f"sampling_params: {name} and {our_name} are the same; send one.",
                f"sampling_params.{name}",
            )
        ours[our_name] = value
    return ours


def _in_callers_words(refused: InvalidRequestError, body: GenerateBody) -> InvalidRequestError:
    """Return the same refusal with the field's name as the caller wrote it."""
    theirs = {OUR_NAMES.get(name, name): f"sampling_params.{name}" for name in body.sampling_params}
    theirs["prompt"] = body.prompt_name
    first, dot, rest = (refused.param or "").partition(".")
    field, bracket, index = first.partition("[")
    name = theirs.get(field)
    if name is not None:
        given = f"{field}{bracket}{index}{dot}{rest}"
        refused.param = f"{name}{bracket}{index}{dot}{rest}"
        refused.message = refused.message.replace(given, refused.param, 1)
    return refused
