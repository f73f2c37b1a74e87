"""What an engine tells about itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """The served model and the limits that follow from it and from the pool."""

    name: str
    max_model_len: int
    """Most tokens of prompt and output together: the context, or the pool if that is smaller."""
    vocab_size: int
    """Ids below this one can be sent and decoded."""
    kv_capacity_tokens: int
    created: int
    """Unix time at which the model was loaded, in seconds."""
    dtype: str
    folder: Path
    """Where its files lie."""
