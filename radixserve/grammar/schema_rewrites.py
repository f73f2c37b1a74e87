"""Keywords that the library does not know, said exactly in words that it does."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from radixserve.grammar.schema_walk import Schema


def rewrite(root: Schema) -> None:
    """Rewrite a schema in place. Mutates: `root`."""
