"""What a run has done so far: counts, tokens, rates."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from radixserve.batch.record import is_ok

if TYPE_CHECKING:
    from radixserve.batch.record import Record


@dataclass(slots=True)
class TokenCounts:
    """Tokens of answers, as their usage tells."""

    prompt: int = 0
    cached: int = 0
    """Of the prompts, from the cache."""
    output: int = 0

    @property
    def computed(self) -> int:
        """Of the prompts, not from the cache."""
        return self.prompt - self.cached

    @property
    def hit_rate(self) -> float:
        """Share of the prompts that came from the cache, from 0 to 1."""
        return self.cached / self.prompt if self.prompt else 0.0

    def add(self, other: TokenCounts) -> None:
        """Count an answer's tokens."""
        self.prompt += other.prompt
        self.cached += other.cached
        self.output += other.output


@dataclass(slots=True)
class BatchReport:
    """Counts lines and tokens. `num_lines` = done + failed + left, whatever happens."""

    num_lines: int = 0
    """That are not blank."""
    num_known: int = 0
    """Of them, done or failed by an earlier run."""
    num_done: int = 0
    num_failed: int = 0
    num_retries: int = 0
    tokens: TokenCounts = field(default_factory=TokenCounts)
    """Of this run."""
    failures: dict[str, int] = field(default_factory=dict)
    """Code -> how many of this run."""
    is_given_up: bool = False
    """Whether the run ended early, because too many failed."""

    @property
    def num_left(self) -> int:
        """Lines without a record."""
        return self.num_lines - self.num_done - self.num_failed

    @property
    def num_run(self) -> int:
        """Lines that this run has written a record for."""
        return self.num_done + self.num_failed - self.num_known

    def know(self, *, is_good: bool) -> None:
        """Count a line that an earlier run has a record for."""
        self.num_known += 1
        self.num_done += is_good
        self.num_failed += not is_good

    def add(self, record: Record) -> None:
        """Count a record of this run."""
        if is_ok(record):
            self.num_done += 1
            self.tokens.add(tokens_of(record["response"]["body"]))
        else:
            self.num_failed += 1
            code = failure_code(record)
            self.failures[code] = self.failures.get(code, 0) + 1

    def summary(self, seconds: float) -> str:
        """Return one line for people, and one for each kind of failure."""
        tokens = self.tokens
        lines = [
            f"{self.num_lines} lines: {self.num_done} done, {self.num_failed} failed"
            + (f", {self.num_left} left" if self.num_left else "")
            + (f" ({self.num_known} by an earlier run)" if self.num_known else "")
        ]
        if self.num_run:
            rate = tokens.output / seconds if seconds > 0 else 0.0
            lines.append(
                f"{tokens.prompt:,} prompt tokens, {tokens.hit_rate:.1%} from the cache, "
                f"{tokens.computed:,} computed; {tokens.output:,} output tokens, {rate:,.0f} a "
                f"second; {seconds:.1f} s, {self.num_retries} retries"
            )
        for code, count in sorted(self.failures.items(), key=lambda pair: (-pair[1], pair[0])):
            lines.append(f"  {count} x {code}")
        return "\n".join(lines)


def failure_code(record: Record) -> str:
    """Return the code of a failure, whoever reported it."""
    error = record["error"]
    if error is not None:
        return str(error["code"])
    response = record["response"]
    body = response["body"]
    details = body.get("error") if isinstance(body, dict) else None
    found = (details.get("code") or details.get("type")) if isinstance(details, dict) else None
    return str(found or f"status_{response['status_code']}")


def tokens_of(body: Any) -> TokenCounts:
    """Return the tokens that an answer of any of the routes has in its usage."""
    usage = body.get("usage") if isinstance(body, dict) else None
    if not isinstance(usage, dict):
        return TokenCounts()
    if "cache_read_input_tokens" in usage:  # Anthropic's input_tokens are those beside the cache's
        read = _count(usage, "cache_read_input_tokens")
        written = _count(usage, "cache_creation_input_tokens")
        prompt = _count(usage, "input_tokens") + read + written
        return TokenCounts(prompt, read, _count(usage, "output_tokens"))
    inputs, outputs = ("input", "output") if "input_tokens" in usage else ("prompt", "completion")
    details = usage.get(f"{inputs}_tokens_details")
    cached = _count(details, "cached_tokens") if isinstance(details, dict) else 0
    return TokenCounts(
        _count(usage, f"{inputs}_tokens"), cached, _count(usage, f"{outputs}_tokens")
    )


def _count(fields: dict[str, Any], name: str) -> int:
    value = fields.get(name)
    return value if isinstance(value, int) else 0
