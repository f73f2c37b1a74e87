"""The words every layer shares: ids, packed token runs, sampling parameters, finish reasons."""

from __future__ import annotations

import enum
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, NewType, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

TokenId: TypeAlias = int
"""Index into the model's vocabulary. A plain int: tokens arrive from everywhere."""

BlockId = NewType("BlockId", int)
"""Index of one KV block in the pool. Only `core.block_pool` makes new ones."""

ReqId = NewType("ReqId", str)
"""Name of one sequence in the scheduler; unique among the live ones."""

PackedIds: TypeAlias = bytes
"""A run of ids as native-endian unsigned 32-bit integers, four bytes an id.

Comparing two runs is one memory compare, and `numpy.frombuffer(ids, dtype=numpy.int32)` reads one
without a copy.
"""

ID_BYTES = 4
MAX_ID = 2**31 - 1

_ID_TYPECODE = "I"
assert array(_ID_TYPECODE).itemsize == ID_BYTES


def pack_ids(ids: Iterable[int]) -> PackedIds:
    """Return `ids` packed, four bytes each.

    Raises:
        OverflowError: an id is negative or does not fit in 32 bits.
    Complexity: O(n).
    """
    return array(_ID_TYPECODE, ids).tobytes()


def unpack_ids(packed: bytes | bytearray | memoryview) -> list[int]:
    """Return the ids of a packed run. The inverse of `pack_ids`. Complexity: O(n)."""
    ids = array(_ID_TYPECODE)
    ids.frombytes(packed)
    return ids.tolist()


@dataclass(frozen=True, slots=True)
class Namespace:
    """What must be equal, besides the tokens, before two sequences may share KV.

    A field for each cause, so that a salt can never be mistaken for an adapter's name.
    """

    model: str = ""
    adapter: str = ""
    salt: str = ""
    owner: str = ""
    """The caller, where callers do not share. A name that a server gives, never a caller."""


class FinishReason(enum.Enum):
    """Why a Req ended. Exactly one is reported for each accepted Req."""

    STOP = "stop"
    """A stop token or a stop string was produced."""
    LENGTH = "length"
    """`max_tokens` or the context's end was reached."""
    TIMEOUT = "timeout"
    """The request's own time was up; the output so far is good."""
    ABORT = "abort"
    """The caller gave up, or the server is shutting down."""
    ERROR = "error"
    """The step that carried it failed."""


class RequestFault(str):
    """Why one row of a step failed, where the request itself is the cause and not the machine."""

    __slots__ = ()


class TokenLogprob(NamedTuple):
    """How likely a token was: natural logarithms of the model's own distribution, before
    temperature, penalties, bias and grammar."""

    token_id: TokenId
    logprob: float
    rank: int
    """1 for the likeliest token."""
    top: tuple[tuple[TokenId, float], ...] = ()
    """The likeliest tokens with theirs, likeliest first; as many as were asked for."""


class GrammarState(Protocol):
    """Where one sequence is in a grammar."""

    def accept(self, token_ids: Sequence[TokenId]) -> bool:
        """Go on by some tokens; False if the grammar forbids one of them. Mutates: the state."""
        ...

    def forced(self) -> list[TokenId]:
        """Return the tokens that must come next whatever the model says; often none.

        Never those that end the output. What follows is the same whether they are taken at once
        or sampled one by one under `allowed`.
        """
        ...

    def allowed(self) -> memoryview:
        """Return a bit for each id of the vocabulary, as 32-bit words, lowest bit first."""
        ...

    @property
    def may_end(self) -> bool:
        """Whether the output may end here."""
        ...

    @property
    def is_complete(self) -> bool:
        """Whether nothing may follow but the end."""
        ...

    @property
    def failure(self) -> str | None:
        """Why the grammar cannot be followed any further, a limit met; None while it can."""
        ...


class Grammar(Protocol):
    """What an output must look like, ready for use. Immutable; shared between requests."""

    @property
    def end_token_id(self) -> TokenId | None:
        """The token that ends an output after which nothing may follow, if there is one."""
        ...

    def start(self) -> GrammarState:
        """Return the state before the first output token."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token is chosen. Validated where a request enters, trusted afterwards.

    Penalties look at a set of tokens that the request alone defines, whatever was cached:
    repetition at prompt and output, presence and frequency at the output only.
    """

    temperature: float = 1.0
    """0 is greedy; values below 1e-5 are taken as 0."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 is off."""
    top_p: float = 1.0
    """Keep the smallest set of tokens whose probability reaches p; 1 is off."""
    min_p: float = 0.0
    """Drop tokens less likely than min_p times the likeliest; 0 is off."""
    seed: int | None = None
    """The random stream is a function of (seed, output position) and of nothing else.
    None: the engine draws a seed at submission."""
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[TokenId, float], ...] = ()
    max_tokens: int = 16
    """Most output tokens, at least 1."""
    min_tokens: int = 0
    """No stop token is sampled before this many output tokens."""
    stop_token_ids: frozenset[TokenId] = field(default_factory=frozenset)
    """All the ids that end the output, the model's end-of-sequence ids included."""
    allowed_token_ids: frozenset[TokenId] | None = None
    """Nothing but these, and what ends the output, is sampled; None allows all."""
    bad_words: tuple[tuple[TokenId, ...], ...] = ()
    """Sequences that the output must not contain."""
    grammar: Grammar | None = None
    """What the output must look like; stop tokens come only where it may end."""
    logprobs: int | None = None
    """Return each output token's log-probability and those of so many likeliest tokens."""
    prompt_logprobs: int | None = None
    """The same for the prompt's tokens; the first has none."""
    prompt_logprobs_start: int = 0
    """First prompt position that `prompt_logprobs` tells of. Cached KV is used before it."""

    @property
    def needs_output(self) -> bool:
        """Whether the sampler needs to see the output before the current token."""
        return self.has_penalties or self.grammar is not None or bool(self.bad_words)

    @property
    def has_penalties(self) -> bool:
        """Whether the sampler needs to see the tokens before the current one."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )
