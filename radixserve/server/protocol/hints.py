"""What a caller tells about a request's future: the field `radix` of every generating route.

    "radix": {
      "cache": {"ttl_s": 20, "keep": "prefix", "prefix_len": 812},
      "event": "end"
    }

    cache.ttl_s       hold this path in the cache for so many seconds, as far as the budget goes
    cache.keep        all | prefix (what others share, and the first prefix_len tokens) | none
    event             "end": nobody will extend this conversation
                      {"pause": {"tool": "search", "expect_s": 1.2}}: it goes on after a tool call

``POST /generate`` also has `fork`, see `ForkHint`.

Hints order the eviction, and no more: a wrong one costs speed, never an answer.

Source: the names follow what Dynamo's agent hints and Anthropic's cache_control say.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from radixserve.engine.request import Ending, Keep, ReleaseHint
from radixserve.server.protocol.body import INT32_MAX, RequestBody

MAX_HOLD_S = 86_400.0


class CacheHint(RequestBody):
    """How long and how much of the path is worth keeping."""

    ttl_s: Annotated[float, Field(ge=0, le=MAX_HOLD_S)] = 0.0
    keep: Literal["all", "prefix", "none"] = "all"
    prefix_len: Annotated[int, Field(ge=0, le=INT32_MAX)] = 0


class Pause(RequestBody):
    """The caller runs a tool and comes back with its result."""

    tool: Annotated[str, Field(max_length=256)] = ""
    expect_s: Annotated[float, Field(ge=0, le=MAX_HOLD_S)] = 2.0
    """2 seconds, where nothing is known of the tool."""


class PauseEvent(RequestBody):
    """The object form of `event`."""

    pause: Pause


def _branch_of_event(value: Any) -> str:
    return "<object>" if isinstance(value, dict | PauseEvent) else "<string>"


EventField = Annotated[
    Annotated[Literal["end"], Tag("<string>")] | Annotated[PauseEvent, Tag("<object>")],
    Discriminator(_branch_of_event),
]


class RadixHints(RequestBody):
    """The object in the field `radix`."""

    cache: CacheHint = Field(default_factory=CacheHint)
    event: EventField | None = None

    def release_hint(self, priority: int) -> ReleaseHint:
        """Return the same for the engine.

        Args:
            priority: Of the request; among held paths the lower goes first.
        """
        pause = self.event.pause if isinstance(self.event, PauseEvent) else None
        return ReleaseHint(
            ending=Ending.TOOL if pause else Ending.UNKNOWN,
            keep=Keep(self.cache.keep),
            prefix_len=self.cache.prefix_len,
            hold_s=max(self.cache.ttl_s, pause.expect_s if pause else 0.0),
            is_session_end=self.event == "end",
            priority=priority,
        )


class ForkHint(RequestBody):
    """Going on from an earlier call, to the last token.

    {"id": "b", "parent": "a", "parent_len": 812}

    The prompt is the first `parent_len` tokens of the call `a`, its prompt and then its output, and
    after them `input_ids`: only what is new has to be sent. What `a` has left in a partly filled
    block is used too. This call is kept as `b` in turn. Names belong to the caller's key.
    """

    id: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """Keep this call under a name, once it has ended by itself."""
    parent: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    parent_len: Annotated[int, Field(ge=0, le=INT32_MAX)] = 0
    ttl_s: Annotated[float, Field(gt=0, le=3600)] = 60.0
    """For how long it is kept, unless it is forgotten before or memory is short."""


class GenerateHints(RadixHints):
    """The object in the field `radix` of ``POST /generate``."""

    fork: ForkHint | None = None
