"""The tree with leaf LRU and tail trimming, replayed over a public trace with known results.

Source: Mooncake's conversation trace (Qin et al., FAST 2025); the hit counts were found by two
independent programs, one over compressed nodes and one over single blocks.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from radixserve.core.radix_tree import RadixTree
from radixserve.types import MAX_ID, BlockId, Namespace, pack_ids

TRACE = Path(__file__).parents[3] / "shared/data/mooncake/conversation_trace.jsonl.gz"
TOKENS_A_BLOCK = 512


def load_full_blocks() -> list[list[int]]:
    """Return each request's ids of full blocks, without the requests that have none."""
    if not TRACE.exists():
        pytest.skip(f"the trace is not there: {TRACE.name}")
    with gzip.open(TRACE, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    paths = [row["hash_ids"][: row["input_length"] // TOKENS_A_BLOCK] for row in rows]
    return [path for path in paths if path]


@pytest.mark.parametrize(("capacity", "hits"), [(17_089, 79_693)])
def test_leaf_lru_hits_exactly_what_the_oracle_hits(capacity: int, hits: int) -> None:
    tree, namespace = RadixTree(block_size=1), Namespace()
    counted = held = fresh = 0
    for path in load_full_blocks():
        # A match leaves one token over; here every block may be a hit.
        counted += tree.match_prefix(pack_ids([*path, MAX_ID]), namespace).matched_len
        blocks = [BlockId(block) for block in range(fresh, fresh + len(path))]
        fresh += len(path)
        held += len(path) - len(tree.insert(pack_ids(path), blocks, namespace).duplicates)
        held -= len(tree.evict(max(0, held - capacity)))
    assert counted == hits
