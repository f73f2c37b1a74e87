"""Pictures of the cache: what ranks first, what a prompt would find, what everybody waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from radixserve.core import cache_view
from radixserve.core.cache_view import view_cache, view_tree
from radixserve.core.explanation import Explanation, explain
from radixserve.core.namespace_hits import NamespaceHits
from radixserve.core.obstacles import Obstacle
from radixserve.core.req_view import ReqView, view_reqs
from radixserve.types import Namespace, ReqId
from tests.kit.builders import Rig, make_spec

if TYPE_CHECKING:
    from radixserve.core.cache_view import NodeView, TreeView

OTHER = Namespace(salt="x")


def run(rig: Rig, name: str, prompt: list[int], *, namespace: Namespace | None = None) -> None:
    """Serve a request to its end."""
    rig.add(name, prompt, max_tokens=1, namespace=namespace or Namespace())
    while rig.scheduler.has_work:
        rig.step()


def nodes(view: TreeView) -> list[NodeView]:
    found: list[NodeView] = []
    stack = [child for root in view.roots for child in root.children]
    while stack:
        node = stack.pop()
        found.append(node)
        stack.extend(node.children)
    return found


def explained(rig: Rig, prompt: list[int], *, max_tokens: int = 1) -> Explanation:
    return explain(rig.scheduler, make_spec("new", prompt, max_tokens=max_tokens))


def views(rig: Rig) -> dict[str, ReqView]:
    return {view.req_id: view for view in view_reqs(rig.scheduler, limit=100)}


@pytest.fixture
def grown() -> Rig:
    """One-token blocks: 1 2 3 with 4 5 or 6 after it, used twice, and 7 8 9 10 11 beside it."""
    rig = Rig(num_blocks=64, block_size=1)
    run(rig, "a", [1, 2, 3, 4, 5, 0])
    run(rig, "b", [1, 2, 3, 6, 0])
    run(rig, "c", [7, 8, 9, 10, 11, 0])
    return rig


# -- the tree ------------------------------------------------------------------------------------


def test_a_picture_has_every_run_of_a_small_tree(grown: Rig) -> None:
    view = view_tree(grown.cache.tree, limit=100)

    assert view.is_whole_tree_walked
    assert view.num_shown == view.num_walked == len(nodes(view)) == 4
    [root] = view.roots
    assert root.cached_tokens == sum(node.num_tokens for node in nodes(view)) == 14
    assert {(node.start, node.first_tokens) for node in nodes(view)} == {
        (0, (1, 2, 3)),
        (3, (4, 5, 0)),
        (3, (6, 0)),
        (0, (7, 8, 9, 10, 11, 0)),
    }


def test_runs_rank_by_tokens_from_their_beginning_on(grown: Rig) -> None:
    view = view_tree(grown.cache.tree, by="tokens", limit=1)

    [first] = nodes(view)
    assert first.first_tokens == (1, 2, 3)
    assert (first.num_tokens, first.tokens_below, first.num_children) == (3, 5, 2)
    assert first.children == ()


def test_runs_rank_by_hits(grown: Rig) -> None:
    run(grown, "d", [7, 8, 9, 10, 11, 12])
    run(grown, "e", [7, 8, 9, 10, 11, 12])

    view = view_tree(grown.cache.tree, by="hits", limit=1)

    assert [(node.first_tokens, node.hits) for node in nodes(view)] == [((7, 8, 9, 10, 11), 3)]


def test_runs_rank_by_users_and_those_without_any_are_left_out(grown: Rig) -> None:
    grown.add("d", [1, 2, 3, 6, 20, 21], max_tokens=9)
    grown.add("e", [1, 2, 3, 30], max_tokens=9)
    grown.step()

    view = view_tree(grown.cache.tree, by="users", limit=100)

    ranked = {node.first_tokens[:1]: node.users for node in nodes(view)}
    assert ranked[(1,)] == 2
    assert set(ranked.values()) == {1, 2}
    assert (7,) not in ranked


def test_the_depth_is_limited(grown: Rig) -> None:
    view = view_tree(grown.cache.tree, limit=100, depth=1)

    assert {node.start for node in nodes(view)} == {0}
    assert {node.tokens_below for node in nodes(view)} == {5, 0}


def test_a_large_tree_is_looked_at_in_part(grown: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_view, "MAX_WALKED_NODES", 3)

    view = view_tree(grown.cache.tree, limit=100)

    assert not view.is_whole_tree_walked
    assert view.num_walked == 2


def test_namespaces_that_are_not_accepted_are_not_shown(grown: Rig) -> None:
    run(grown, "d", [1, 2, 3, 0], namespace=OTHER)

    view = view_tree(grown.cache.tree, accepts=lambda namespace: namespace == OTHER)

    assert [(root.namespace, root.cached_tokens) for root in view.roots] == [(OTHER, 4)]


# -- the numbers ---------------------------------------------------------------------------------


def test_hits_are_counted_by_namespace(grown: Rig) -> None:
    run(grown, "d", [1, 2, 3, 0], namespace=OTHER)
    run(grown, "e", [1, 2, 3, 0], namespace=OTHER)

    by_namespace = {each.namespace: each for each in view_cache(grown.scheduler, 0.0).namespaces}

    assert set(by_namespace) == {Namespace(), OTHER}
    other = by_namespace[OTHER]
    assert (other.cached_tokens, other.prompt_tokens, other.hit_tokens) == (4, 8, 3)
    nameless = by_namespace[Namespace()]
    assert (nameless.cached_tokens, nameless.prompt_tokens, nameless.hit_tokens) == (14, 17, 3)


def test_a_namespace_that_holds_nothing_any_more_is_still_known(grown: Rig) -> None:
    run(grown, "d", [1, 2, 3, 0], namespace=OTHER)
    grown.cache.flush(OTHER)

    found = view_cache(grown.scheduler, 0.0, lambda namespace: namespace == OTHER).namespaces

    assert [(each.cached_tokens, each.prompt_tokens) for each in found] == [(0, 4)]


def test_only_so_many_namespaces_are_remembered() -> None:
    hits = NamespaceHits(max_namespaces=2)
    for salt in ("a", "b", "a", "c"):
        hits.count(Namespace(salt=salt), 2, 1)

    assert [namespace.salt for namespace in hits] == ["c", "a"]
    assert hits.of(Namespace(salt="a")) == (4, 2)
    assert hits.of(Namespace(salt="b")) == (0, 0)


# -- a prompt that has not come ------------------------------------------------------------------


def test_a_prompt_leaves_the_tree_inside_a_run(grown: Rig) -> None:
    found = explained(grown, [7, 8, 1, 1])

    assert (found.cached_len, found.diverges_at) == (2, 2)
    assert found.next_in_tree == ((9, 10, 11, 0),)
    assert found.would_be_admitted


def test_a_prompt_leaves_the_tree_where_it_branches(grown: Rig) -> None:
    found = explained(grown, [1, 2, 3, 20])

    assert found.diverges_at == 3
    assert set(found.next_in_tree) == {(4, 5, 0), (6, 0)}


def test_a_prompt_that_the_tree_has_whole_diverges_nowhere(grown: Rig) -> None:
    found = explained(grown, [1, 2, 3])

    assert (found.cached_len, found.diverges_at, found.next_in_tree) == (2, None, ())


def test_a_prompt_that_goes_on_after_a_leaf_finds_nothing_there(grown: Rig) -> None:
    found = explained(grown, [1, 2, 3, 6, 0, 20])

    assert (found.diverges_at, found.next_in_tree) == (5, ())


def test_a_namespace_without_a_tree_explains_nothing(grown: Rig) -> None:
    found = explain(grown.scheduler, make_spec("new", [1, 2], namespace=OTHER))

    assert (found.cached_len, found.diverges_at, found.next_in_tree) == (0, 0, ())


@pytest.mark.parametrize("length", range(1, 13))
def test_an_explanation_foretells_what_a_request_finds(length: int) -> None:
    rig = Rig(num_blocks=64, block_size=4)
    run(rig, "a", list(range(1, 13)))
    prompt = [*range(1, length + 1), 99]

    found = explained(rig, prompt)
    run(rig, "b", prompt)

    assert found.cached_len == rig.finals["b"].cached_len == min(length, 12)
    assert found.whole_blocks_len + found.tail_len == found.cached_len
    assert found.diverges_at == length
    expected = [length + 1] if length < 12 else []
    assert [run[0] for run in found.next_in_tree[:1]][: len(expected)] == expected


def test_a_prompt_that_never_fits_is_told_so() -> None:
    rig = Rig(num_blocks=4, block_size=1)

    found = explained(rig, [1, 2, 3], max_tokens=9)

    assert not found.would_be_admitted
    assert "4 tokens (4 blocks of 1)" in (found.never_fits or "")


def test_short_memory_is_told_with_its_numbers() -> None:
    rig = Rig(num_blocks=10, block_size=1)
    rig.add("a", range(1, 8), max_tokens=3)
    rig.step()

    found = explained(rig, [20, 21, 22, 23, 24])

    assert Obstacle.MEMORY in found.obstacles
    need = found.memory
    assert (need.needed, need.available) == (5, 10 - 7)
    rig.add("b", [20, 21, 22, 23, 24], max_tokens=1)
    rig.step()
    assert views(rig)["b"].waits_for is Obstacle.MEMORY
    need = views(rig)["b"].memory or need
    assert (need.needed, need.reserved, need.available) == (5, 1, 2)


def test_a_prefix_under_way_is_told_by_its_leader() -> None:
    rig = Rig(num_blocks=64, block_size=1, max_num_batched_tokens=4, max_num_seqs=4)
    rig.add("a", range(1, 20))
    rig.step()

    found = explained(rig, [*range(1, 18), 30])

    assert found.leader == "a"
    assert Obstacle.PREFIX in found.obstacles


# -- those that live -----------------------------------------------------------------------------


def test_a_live_request_is_seen_wherever_it_is() -> None:
    rig = Rig(num_blocks=64, block_size=1, max_num_batched_tokens=8, max_num_seqs=2)
    rig.add("a", [1, 2], max_tokens=9, priority=3)
    rig.step()
    rig.add("b", range(10, 30), max_tokens=2)
    rig.step()
    rig.add("c", range(40, 44), max_tokens=2)
    rig.step()
    rig.add("d", [5], max_tokens=2)

    found = views(rig)

    assert {name: view.phase for name, view in found.items()} == {
        "a": "decode",
        "b": "prefill",
        "c": "waiting",
        "d": "inbox",
    }
    assert found["c"].waits_for is Obstacle.SLOT
    assert found["a"].waits_for is found["b"].waits_for is None
    assert (found["a"].prompt_len, found["a"].output_len, found["a"].priority) == (2, 3, 3)
    assert found["b"].computed_len == found["b"].shared_blocks == 14
    assert [view.req_id for view in view_reqs(rig.scheduler, limit=2)] == ["a", "b"]


def test_a_follower_names_its_leader() -> None:
    rig = Rig(num_blocks=64, block_size=1, max_num_batched_tokens=4, max_num_seqs=4)
    rig.add("a", range(1, 20))
    rig.step()
    rig.add("b", [*range(1, 18), 30])
    rig.step()

    follower = views(rig)["b"]

    assert (follower.waits_for, follower.leader) == (Obstacle.PREFIX, ReqId("a"))


def test_prompts_under_way_use_up_a_step() -> None:
    rig = Rig(num_blocks=64, block_size=1, max_num_batched_tokens=4, max_num_seqs=4)
    rig.add("a", range(1, 20))
    rig.add("b", range(30, 50))
    rig.add("c", range(60, 80))
    rig.step()

    waiting = [view for view in views(rig).values() if view.phase == "waiting"]

    assert waiting
    assert {view.waits_for for view in waiting} == {Obstacle.CHUNK}


def test_a_running_prompt_that_a_step_leaves_out_waits_for_its_chunk() -> None:
    rig = Rig(num_blocks=200, block_size=1, max_num_batched_tokens=4, max_num_seqs=4)
    rig.add("a", range(1, 3), max_tokens=50)
    rig.add("b", range(30, 32), max_tokens=50)
    rig.step()
    rig.add("c", range(60, 80))
    rig.add("d", range(90, 110))
    rig.step()
    plan = rig.plan()
    rows = {row.req_id for row in plan.reqs}

    found = views(rig)

    left_out = {n for n in rig.scheduler.queues.running if n not in rows}
    assert {n for n, v in found.items() if v.waits_for is Obstacle.CHUNK} >= left_out
    rig.land(plan)


def test_looking_changes_nothing(grown: Rig) -> None:
    grown.add("d", [1, 2, 3, 6, 20, 21], max_tokens=9)
    grown.step()
    tree = grown.cache.tree
    before = (tree.version, tree.clock, repr(grown.scheduler), list(tree.evictable))

    view_tree(tree)
    view_cache(grown.scheduler, 0.0)
    explained(grown, [1, 2, 3, 4, 5, 7])
    views(grown)

    assert (tree.version, tree.clock, repr(grown.scheduler), list(tree.evictable)) == before
