"""Models that are too simple to be wrong, to hold the radix tree and the scheduler to.

A block is known by the whole prefix that it ends: `(namespace, tokens up to its last one)`.
The tree is then a dict from such paths to block ids; every question is answered by looking at
all of them.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from radixserve.types import Namespace, unpack_ids
from tests.kit.fake_runner import score

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from radixserve.core.radix_tree import RadixTree
    from radixserve.core.req import ReqSpec
    from radixserve.types import TokenLogprob
    from tests.kit.fake_runner import FakeRunner

Tokens = tuple[int, ...]
Path = tuple[Namespace, Tokens]


def shared_len(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading tokens two sequences have in common."""
    length = 0
    while length < min(len(a), len(b)) and a[length] == b[length]:
        length += 1
    return length


def continuation(runner: FakeRunner, spec: ReqSpec) -> list[int]:
    """What a request produces when it is alone and nothing is cached."""
    prefix = tuple(unpack_ids(spec.prompt))
    output: list[int] = []
    while True:
        for token in runner.next_tokens((*prefix, *output)):
            output.append(token)
            is_stop = token in spec.params.stop_token_ids and len(output) >= spec.params.min_tokens
            if is_stop or len(output) == spec.params.max_tokens:
                return output


def prompt_scores(spec: ReqSpec) -> list[TokenLogprob]:
    """What a request is told of its prompt, from the first position it asks for."""
    params, prompt = spec.params, unpack_ids(spec.prompt)
    if params.prompt_logprobs is None:
        return []
    first = max(1, params.prompt_logprobs_start)
    return [score(prompt[:at], prompt[at]) for at in range(first, len(prompt))]


def paths_of(tree: RadixTree) -> dict[Path, int]:
    """Every block of a tree by its path."""
    found: dict[Path, int] = {}
    prefix: dict[int, Tokens] = {}
    for node in tree.nodes():
        above = prefix[id(node.parent)] if node.parent else ()
        tokens = (*above, *unpack_ids(node.key))
        prefix[id(node)] = tokens
        for place, block in enumerate(node.blocks, start=1):
            found[node.namespace, tokens[: len(above) + place * tree.block_size]] = block
    return found


class TreeTruth:
    """What is cached, when it was used last, and who holds it, block by block."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.block_at: dict[Path, int] = {}
        self.age: dict[Path, int] = {}
        self.locks: Counter[Path] = Counter()
        self.clock = 0

    def paths(self, namespace: Namespace, tokens: Tokens) -> Iterator[Path]:
        """The path of every whole block of some tokens, from the root on."""
        for end in range(self.block_size, len(tokens) + 1, self.block_size):
            yield namespace, tokens[:end]

    def matched_len(self, namespace: Namespace, tokens: Tokens) -> int:
        """Tokens in the longest run of whole cached blocks, of all tokens but the last."""
        cached = [path for path in self.paths(namespace, tokens[:-1]) if path in self.block_at]
        return len(cached[-1][1]) if cached else 0

    def total_len(self, namespace: Namespace, tokens: Tokens) -> int:
        """The longest prefix, to the token, that any cached block has in common with `tokens`."""
        lengths = (shared_len(path[1], tokens[:-1]) for path in self.of(namespace))
        return max(lengths, default=0)

    def of(self, namespace: Namespace) -> list[Path]:
        """All the cached paths of a namespace."""
        return [path for path in self.block_at if path[0] == namespace]

    def blocks(self, namespace: Namespace, tokens: Tokens) -> list[int]:
        """The blocks of some tokens, all of which are cached."""
        return [self.block_at[path] for path in self.paths(namespace, tokens)]

    def publish(
        self, namespace: Namespace, tokens: Tokens, blocks: Sequence[int], *, first: int = 0
    ) -> list[int]:
        """Add what is not there yet; return the given blocks that were not needed.

        Args:
            first: Leading blocks of `tokens` that are there already and not among `blocks`.
        """
        duplicates = []
        for path, block in zip(list(self.paths(namespace, tokens))[first:], blocks, strict=True):
            if path in self.block_at:
                duplicates.append(block)
            else:
                self.block_at[path] = block
                self.age[path] = 0
        return duplicates

    def touch(self, namespace: Namespace, tokens: Tokens) -> None:
        """Use a path: its blocks are the youngest now."""
        self.clock += 1
        for path in self.paths(namespace, tokens):
            self.age[path] = self.clock

    def lock(self, namespace: Namespace, tokens: Tokens) -> None:
        """Hold a path, without a touch."""
        self.locks.update(self.paths(namespace, tokens))

    def unlock(self, namespace: Namespace, tokens: Tokens) -> None:
        """Let go of a path, without a touch."""
        self.locks.subtract(self.paths(namespace, tokens))

    @property
    def num_evictable(self) -> int:
        """Blocks that nobody holds."""
        return sum(self.locks[path] == 0 for path in self.block_at)

    @property
    def num_protected(self) -> int:
        """Blocks that somebody holds."""
        return len(self.block_at) - self.num_evictable

    def evict(self, count: int) -> set[int]:
        """Give up one block at a time: of those without a successor, the one used longest ago."""
        freed: set[int] = set()
        while len(freed) < count and (path := self._oldest_end()) is not None:
            freed.add(self.block_at.pop(path))
            del self.age[path]
        return freed

    def _oldest_end(self) -> Path | None:
        inner = {(namespace, tokens[: -self.block_size]) for namespace, tokens in self.block_at}
        ends = [path for path in self.block_at if path not in inner and self.locks[path] == 0]
        return min(ends, key=self.age.__getitem__, default=None)
