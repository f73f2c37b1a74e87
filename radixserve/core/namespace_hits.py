"""How many prompt tokens each namespace has asked for, and how many of them were cached."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from radixserve.types import Namespace

MAX_NAMESPACES = 1024


class NamespaceHits:
    """Counters by namespace, of those that were used last.

    Salts come from callers, so their number has no bound: beyond `max_namespaces` the one that was
    used longest ago is forgotten. The totals over all of them are in `stats.Counters`.
    """

    __slots__ = ("_hits", "max_namespaces")

    def __init__(self, max_namespaces: int = MAX_NAMESPACES) -> None:
        self.max_namespaces = max_namespaces
        self._hits: dict[Namespace, tuple[int, int]] = {}
        """Namespace -> (prompt tokens, cached tokens), the one used longest ago first."""

    def __repr__(self) -> str:
        return f"<NamespaceHits of {len(self._hits)} namespaces>"

    def __len__(self) -> int:
        return len(self._hits)

    def count(self, namespace: Namespace, prompt_len: int, cached_len: int) -> None:
        """Add one admitted Req. Complexity: O(1)."""
        prompt, cached = self._hits.pop(namespace, (0, 0))
        self._hits[namespace] = (prompt + prompt_len, cached + cached_len)
        if len(self._hits) > self.max_namespaces:
            del self._hits[next(iter(self._hits))]

    def of(self, namespace: Namespace) -> tuple[int, int]:
        """Return (prompt tokens, cached tokens) of a namespace; zeros if it is not known."""
        return self._hits.get(namespace, (0, 0))

    def __iter__(self) -> Iterator[Namespace]:
        """Those known, the one used last first."""
        return reversed(self._hits)
