"""What the routes below ``/cache`` answer, and ``GET /requests``, as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from radixserve.engine.cache_control import Obstacle

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from radixserve.engine.cache_control import (
        CacheView,
        Explanation,
        MemoryNeed,
        NodeView,
        PinAnswer,
        PinView,
        ReqView,
        TreeView,
    )
    from radixserve.types import Namespace

    Decode = Callable[[Sequence[int]], str]


def cache_json(view: CacheView) -> dict[str, Any]:
    """Return the cache in numbers. Blocks have `block_size` tokens."""
    stats = view.stats
    return {
        "object": "cache",
        "block_size": stats.block_size,
        "capacity_tokens": stats.num_blocks * stats.block_size,
        "blocks": {
            "total": stats.num_blocks,
            "free": stats.free_blocks,
            "private": stats.private_blocks,
            "evictable": stats.evictable_blocks,
            "protected": stats.protected_blocks,
        },
        "held": {"blocks": view.held_blocks, "max_blocks": view.max_held_blocks},
        "prompt_tokens": stats.prompt_tokens,
        "hit_tokens": stats.cached_tokens,
        "hit_rate": _share(stats.cached_tokens, stats.prompt_tokens),
        "evicted_blocks": stats.evicted_blocks,
        "flushed_blocks": view.flushed_blocks,
        "num_namespaces": view.num_namespaces,
        "namespaces": [
            {
                **namespace_json(each.namespace),
                "cached_tokens": each.cached_tokens,
                "prompt_tokens": each.prompt_tokens,
                "hit_tokens": each.hit_tokens,
                "hit_rate": _share(each.hit_tokens, each.prompt_tokens),
            }
            for each in view.namespaces
        ],
        "num_pins": view.num_pins,
        "num_lost_pins": view.num_lost_pins,
        "pins": [_pin_view_json(pin) for pin in view.pins],
    }


def namespace_json(namespace: Namespace) -> dict[str, Any]:
    """Return what tells a namespace from the others of one server."""
    return {"cache_salt": namespace.salt, "cache_owner": namespace.owner}


def tree_json(view: TreeView, decode: Decode | None) -> dict[str, Any]:
    """Return the upper part of the tree.

    Args:
        decode: Makes text of the first tokens; without it there is none.
    """
    return {
        "object": "cache.tree",
        "by": view.ranked_by,
        "num_shown": view.num_shown,
        "num_examined": view.num_walked,
        "is_complete": view.is_whole_tree_walked,
        "namespaces": [
            {
                **namespace_json(root.namespace),
                "cached_tokens": root.cached_tokens,
                "runs": [_node_json(node, decode) for node in root.children],
            }
            for root in view.roots
        ],
    }


def explanation_json(found: Explanation, decode: Decode | None) -> dict[str, Any]:
    """Return what a prompt would find.

    Args:
        decode: Makes text of how the tree goes on; without it that is not told.
    """
    return {
        "object": "cache.explanation",
        "prompt_tokens": found.prompt_len,
        "cached_tokens": found.cached_len,
        "shared_tokens": found.whole_blocks_len,
        "copied_tokens": found.tail_len,
        "computed_tokens": found.prompt_len - found.cached_len,
        "diverges_at": found.diverges_at,
        "next_in_tree": None
        if decode is None
        else [{"tokens": list(run), "text": decode(run)} for run in found.next_in_tree],
        "would_be_admitted": found.would_be_admitted,
        "reasons": [*_never(found), *(_reason_json(each, found) for each in found.obstacles)],
        "memory": _memory_json(found.memory),
        "running": {"now": found.num_running, "max": found.max_running},
        "queued_before": found.num_queued_before,
    }


def pin_json(answer: PinAnswer, ttl_s: float) -> dict[str, Any]:
    """Return a pin that was granted."""
    return {
        "object": "cache.pin",
        "name": answer.name,
        "prompt_tokens": answer.asked_len,
        "pinned_tokens": answer.cached_len,
        "expires_in_s": ttl_s,
        "added_blocks": answer.cost_blocks,
        "held": {"blocks": answer.held_blocks, "max_blocks": answer.max_held_blocks},
    }


def request_json(view: ReqView, age_s: float | None) -> dict[str, Any]:
    """Return one live request."""
    return {
        "id": view.req_id,
        "phase": view.phase,
        "waits_for": view.waits_for.value if view.waits_for else None,
        "leader": view.leader,
        "memory": _memory_json(view.memory) if view.memory else None,
        "age_s": age_s,
        "priority": view.priority,
        "user": view.tenant,
        **namespace_json(view.namespace),
        "prompt_tokens": view.prompt_len,
        "cached_tokens": view.cached_len,
        "computed_tokens": view.computed_len,
        "output_tokens": view.output_len,
        "max_tokens": view.max_tokens,
        "shared_blocks": view.shared_blocks,
        "private_blocks": view.private_blocks,
        "preemptions": view.num_preemptions,
    }


def _node_json(node: NodeView, decode: Decode | None) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "start": node.start,
        "tokens": node.num_tokens,
        "tokens_below": node.tokens_below,
        "users": node.users,
        "hits": node.hits,
        "idle_uses": node.idle_uses,
        "is_held": node.is_held,
        "is_pinned": node.is_pinned,
        "num_children": node.num_children,
    }
    if decode is not None:
        shown["text"] = decode(node.first_tokens)
    shown["children"] = [_node_json(child, decode) for child in node.children]
    return shown


def _pin_view_json(pin: PinView) -> dict[str, Any]:
    return {
        "name": pin.name,
        **namespace_json(pin.namespace),
        "prompt_tokens": pin.asked_len,
        "pinned_tokens": pin.pinned_len,
        "expires_in_s": round(pin.expires_in_s, 3),
        "priority": pin.priority,
    }


def _memory_json(need: MemoryNeed) -> dict[str, int]:
    return {
        "needed_blocks": need.needed,
        "reserved_blocks": need.reserved,
        "available_blocks": need.available,
    }


def _never(found: Explanation) -> list[dict[str, Any]]:
    return [] if found.never_fits is None else [{"reason": "never", "message": found.never_fits}]


def _reason_json(obstacle: Obstacle, found: Explanation) -> dict[str, Any]:
    need = found.memory
    messages = {
        Obstacle.PREFIX: f"{found.leader} is computing a prefix of it, which it would wait for",
        Obstacle.SLOT: f"{found.num_running} requests run, of at most {found.max_running}",
        Obstacle.CHUNK: "the prompts under way use up the tokens of a step",
        Obstacle.MEMORY: (
            f"it needs {need.needed} blocks and {need.reserved} must stay for those that run; "
            f"{need.available} can be had"
        ),
        Obstacle.QUEUE: f"{found.num_queued_before} requests were here before",
    }
    return {"reason": obstacle.value, "message": messages[obstacle]}


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None
