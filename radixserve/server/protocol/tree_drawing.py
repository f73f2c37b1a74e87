"""The cache's tree as lines of text, for people.

by tokens: 3 of 3 runs

cache_salt ""  1,504 tokens
 |- 0..512       512 tokens  1 user  41 hits  pinned   "You are a helpful assistant"
 |   `- 512..800   288 tokens  0 users  7 hits            "What is the capital of"
 `- 0..704       704 tokens  0 users  2 hits            "Summarize the following"
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from radixserve.engine.cache_control import NodeView, TreeView

PREVIEW_LEN = 48


def draw_tree(view: TreeView, decode: Callable[[Sequence[int]], str] | None) -> str:
    """Return the picture; see the module.

    Args:
        decode: Makes text of a run's first tokens; without it there is none.
    """
    more = "" if view.is_whole_tree_walked else " that were looked at"
    lines = [f"by {view.ranked_by}: {view.num_shown} of {view.num_walked} runs{more}"]
    for root in view.roots:
        owner = f"  owner {root.namespace.owner}" if root.namespace.owner else ""
        salt = root.namespace.salt.encode("unicode_escape").decode()
        lines += ["", f'cache_salt "{salt}"{owner}  {root.cached_tokens:,} tokens']
        lines += _draw(root.children, " ", decode)
    return "\n".join(lines) + "\n"


def _draw(
    nodes: Sequence[NodeView], indent: str, decode: Callable[[Sequence[int]], str] | None
) -> Iterator[str]:
    for place, node in enumerate(nodes, start=1):
        is_last = place == len(nodes)
        yield f"{indent}{'`-' if is_last else '|-'} {_describe(node, decode)}"
        yield from _draw(node.children, indent + ("    " if is_last else "|   "), decode)


def _describe(node: NodeView, decode: Callable[[Sequence[int]], str] | None) -> str:
    parts = [
        f"{node.start}..{node.start + node.num_tokens}",
        _count(node.num_tokens, "token"),
        _count(node.users, "user"),
        _count(node.hits, "hit"),
    ]
    hidden = node.num_children - len(node.children)
    if hidden:
        parts.append(f"{hidden:,} more below")
    if node.is_pinned or node.is_held:
        parts.append("pinned" if node.is_pinned else "held")
    if decode is not None:
        text = decode(node.first_tokens).encode("unicode_escape").decode()
        parts.append(f'"{text[:PREVIEW_LEN]}"')
    return "  ".join(parts)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
