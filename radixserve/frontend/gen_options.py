"""How a text is generated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from radixserve.errors import InvalidRequestError
from radixserve.frontend.keywords import from_keywords

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class GenOptions:
    """Sampling, limits, constraints and attempts of one `gen`."""

    max_tokens: int | None = None
    """The program's default when None."""
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop: str | Sequence[str] = ()
    regex: str | None = None
    schema: Mapping[str, Any] | None = None
    grammar: str | None = None
    n: int = 1
    retries: int = 0
    """More attempts at a value of the type."""
    timeout: float | None = None
    """Seconds of one attempt, with what it waits for room."""
    seed: int | None = None
    """By the call's path when None."""
    logprobs: int | None = None

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> GenOptions:
        """Return the options of some keyword arguments.

        Raises:
            InvalidRequestError: there is no such option, or it is out of range.
        """
        options = from_keywords(cls, fields, "gen")
        if options.n < 1:
            raise InvalidRequestError(f"n must be at least 1; got {options.n}", param="n")
        if options.retries < 0:
            raise InvalidRequestError(
                f"retries must be at least 0; got {options.retries}", param="retries"
            )
        return options

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings, whichever way they were given."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
