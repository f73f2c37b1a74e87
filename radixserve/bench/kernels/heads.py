"""`Heads`: what of a model decides its attention."""

from __future__ import annotations

from typing import Protocol


class Heads(Protocol):
    """Counts and size of the heads; every ModelSpec has them."""

    @property
    def num_qo_heads(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
