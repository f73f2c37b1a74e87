"""The bodies and queries of the routes below ``/cache``, and of ``GET /requests``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import Discriminator, Field, Tag

from radixserve.engine.cache_control import MAX_DEPTH
from radixserve.server.protocol.body import INT32_MAX, RequestBody
from radixserve.server.protocol.chat import parse_chat
from radixserve.server.protocol.fields import TokenIds, parse_body
from radixserve.server.protocol.refusal import MISSING, refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from radixserve.server.protocol.chat import ChatRequest

MAX_TTL_S = 7 * 86_400.0
DEFAULT_TTL_S = 3600.0
MAX_SHOWN_RUNS = 200
MAX_SHOWN_REQUESTS = 1000

_CHAT_FIELDS = (
    "messages",
    "add_generation_prompt",
    "continue_final_message",
    "chat_template_kwargs",
    "tools",
    "tool_choice",
)


def _branch_of_prompt(value: Any) -> str | None:
    if isinstance(value, str):
        return "<text>"
    return "<ids>" if isinstance(value, list) else None


PrefixField = Annotated[
    Annotated[str, Tag("<text>")]
    | Annotated[Annotated[TokenIds, Field(min_length=1)], Tag("<ids>")],
    Discriminator(
        _branch_of_prompt,
        custom_error_type="prompt_type",
        custom_error_message="Input should be a string or a list of token ids",
    ),
]
SaltField = Annotated[str, Field(max_length=1024)]
OwnerField = Annotated[str, Field(max_length=64)]
PinNameField = Annotated[str, Field(min_length=1, max_length=128)]
PriorityField = Annotated[int, Field(ge=-INT32_MAX, le=INT32_MAX)]


class CachePrompt(RequestBody):
    """A prompt as the generating routes take it, and whose part of the cache is meant.

    Either `prompt`, or `messages` with the fields that shape a chat's prompt: those are checked and
    rendered as ``POST /v1/chat/completions`` does it.
    """

    model: str | None = None
    """The served model when left out."""
    prompt: PrefixField | None = None
    add_special_tokens: bool = True
    """Whether the tokenizer may add its begin-of-sequence token to a text."""
    messages: list[Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    cache_salt: SaltField = ""
    cache_owner: OwnerField | None = None
    """Whose part of the cache: a key's name; the caller's own when left out. For admins."""

    @property
    def has_prompt(self) -> bool:
        """Whether there is a prompt in either form."""
        return self.prompt is not None or self.messages is not None

    def chat(self) -> ChatRequest:
        """Return the chat that `messages` stands for.

        Raises:
            InvalidRequestError: a field of it is wrong.
        """
        given = {name: getattr(self, name) for name in _CHAT_FIELDS}
        return parse_chat({name: value for name, value in given.items() if value is not None})


class ExplainBody(CachePrompt):
    """One call of ``POST /cache/explain``."""

    max_tokens: Annotated[int, Field(ge=1, le=INT32_MAX)] = 1
    """Output tokens that are to fit too."""
    priority: PriorityField = 0


class PinBody(CachePrompt):
    """One call of ``POST /cache/pin``."""

    name: PinNameField | None = None
    """Made up when left out; a name in use gets the new prefix."""
    ttl_s: Annotated[float, Field(gt=0, le=MAX_TTL_S)] = DEFAULT_TTL_S
    priority: PriorityField = 0
    """When memory is short, what is held goes last, and the lowest priority first of it."""


class UnpinBody(CachePrompt):
    """One call of ``POST /cache/unpin``: by the pin's name, or by its prefix."""

    name: PinNameField | None = None


class PinOptions(RequestBody):
    """How a warmed prefix is to be pinned."""

    name: PinNameField | None = None
    ttl_s: Annotated[float, Field(gt=0, le=MAX_TTL_S)] = DEFAULT_TTL_S
    priority: PriorityField = 0


class WarmBody(CachePrompt):
    """One call of ``POST /cache/warm``."""

    pin: PinOptions | None = None
    """Pin the prefix once it is there. For admins."""
    priority: PriorityField = 0
    timeout_s: Annotated[float, Field(gt=0, le=86_400)] | None = None


class FlushBody(RequestBody):
    """One call of ``POST /cache/flush``; without fields it means everything."""

    cache_salt: SaltField | None = None
    """Only what requests of this salt have cached; "" is those without a salt."""
    cache_owner: OwnerField | None = None
    """Only what this key's requests have cached."""


class TreeQuery(RequestBody):
    """The query of ``GET /cache/tree``."""

    by: Literal["tokens", "users", "hits"] = "tokens"
    """What ranks a run: the tokens from its beginning on, its users now, or its uses so far."""
    limit: Annotated[int, Field(ge=1, le=MAX_SHOWN_RUNS)] = 20
    depth: Annotated[int, Field(ge=1, le=MAX_DEPTH)] = 8
    cache_salt: SaltField | None = None
    cache_owner: OwnerField | None = None


class CacheQuery(RequestBody):
    """The query of ``GET /cache``."""

    cache_salt: SaltField | None = None
    cache_owner: OwnerField | None = None


class RequestsQuery(RequestBody):
    """The query of ``GET /requests``."""

    limit: Annotated[int, Field(ge=1, le=MAX_SHOWN_REQUESTS)] = 100


CachePromptT = TypeVar("CachePromptT", bound=CachePrompt)
BodyT = TypeVar("BodyT", bound=RequestBody)


def parse_cache_prompt(
    body: Any, kind: type[CachePromptT], *, ignore_unknown: bool = False, is_needed: bool = True
) -> CachePromptT:
    """Return the typed body; see `parse_body` for what it raises.

    Args:
        is_needed: Whether there must be a prompt.
    Raises:
        InvalidRequestError: also if `prompt` and `messages` are both there, or none of them.
    """
    parsed = parse_body(body, kind, {}, ignore_unknown=ignore_unknown)
    if is_needed and not parsed.has_prompt:
        raise refusal("prompt: field required, unless messages is sent.", "prompt", MISSING)
    if parsed.prompt is not None and parsed.messages is not None:
        raise refusal("prompt and messages exclude each other; send one.", "prompt")
    return parsed


def parse_unpin(body: Any, *, ignore_unknown: bool = False) -> UnpinBody:
    """Return the typed body.

    Raises:
        InvalidRequestError: also unless exactly one of a name and a prompt is there.
    """
    parsed = parse_cache_prompt(body, UnpinBody, ignore_unknown=ignore_unknown, is_needed=False)
    if parsed.name is None and not parsed.has_prompt:
        raise refusal("name: field required, unless prompt or messages is sent.", "name", MISSING)
    if parsed.name is not None and parsed.has_prompt:
        raise refusal("name and prompt exclude each other; send one.", "name")
    return parsed


def parse_query(query: Mapping[str, str], kind: type[BodyT]) -> BodyT:
    """Return the typed query; nothing but what `kind` knows is allowed.

    Raises:
        InvalidRequestError: names the first parameter at fault.
    """
    values: dict[str, Any] = dict(query)
    for name in ("limit", "depth"):
        text = values.get(name, "")
        if text.isascii() and text.isdigit() and len(text) < 10:
            values[name] = int(text)
    return parse_body(values, kind, {}, ignore_unknown=False)
