"""The numbered invariants of scheduler, tree and pool, as text and as a check.

 1 Partition   each block is in exactly one of: the free list, one Req's private blocks, one node
 2 Counts      free + private + evictable + protected = total. That private = protected = 0 when
               no Req is alive follows from 1 and 4
 3 Shape       every node but a root: len(tokens) == len(blocks) * block_size > 0, filed under its
               first block, siblings sorted, links agree, end_len right; roots are empty
 4 Locks       lock_ref = live handles at or below the node
 5 Evictable   the eviction index holds exactly the unlocked leaves, in its own order
 6 Ages        last_access never grows from parent to child
 7 Tables      a running Req's table = its handle's path + its private blocks, and covers its
               computed tokens; the handle's path spells the Req's own tokens
 8 In flight   no block that a plan in flight computes in, copies or swaps into is free; nobody
               else copies or swaps into it; without a plan no copy and no swap-in is pending.
               A row computes in blocks that are its Req's own. Plans are computed in order: so
               one made ahead may name blocks that were given back when the step before was
               answered (what its void rows write to, duplicates that its rows read), for they are
               written again by later plans only
 9 Answers     a Req is in exactly one of inbox, waiting, running, finished; finishing emits one
               output (the table in `req` and `Queues` make a second one impossible)
10 Content     a cached block's KV was written by the tokens on its path, for its namespace. Only a
               runner can see KV; the tests' fake runner checks this at every step
11 Host        each host block is in exactly one of: the free list, one waiting Req's record, the
               sources of the running plan's swap-ins. A record covers the Req's table from its
               first block to its last saved token. Nothing is swapped out over another's swap-in

`check_tree`, `check_cache` and `check` cost O(everything): for tests, and on demand in a server.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from radixserve.core.req import ReqState
from radixserve.errors import InvariantError
from radixserve.types import ID_BYTES, unpack_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from radixserve.core.node import Node
    from radixserve.core.plan import ScheduledReq, StepPlan
    from radixserve.core.prefix_cache import Lease, PrefixCache
    from radixserve.core.radix_tree import RadixTree
    from radixserve.core.req import Req
    from radixserve.core.scheduler import Scheduler


def check(scheduler: Scheduler) -> None:
    """Check invariants 1 to 9 and 11.

    Raises:
        InvariantError: with the number of the first broken one and a dump of the state.
    """
    reqs = list(scheduler.queues)
    leases = [req.lease for req in reqs if req.lease is not None]
    check_cache(scheduler.cache, [*leases, *scheduler.fork_points.leases()])
    for req in reqs:
        _check_req(req, scheduler)
    _check_in_flight(scheduler)
    _check_swap_space(scheduler)
    names = [req.req_id for req in reqs]
    _require(9, len(names) == len(set(names)), lambda: f"a Req is in two queues: {names}")
    _require(9, set(names) <= scheduler.live_ids, lambda: "a finished Req is still queued")


def check_cache(cache: PrefixCache, leases: Iterable[Lease]) -> None:
    """Check invariants 1 to 7 as far as cache and leases show them.

    Args:
        leases: All the live ones.
    """
    tree = cache.tree
    check_tree(tree)
    cache.pins.check()
    held = list(leases)
    owners: Counter[int] = Counter()
    for block in range(cache.pool.num_blocks):
        owners[block] += cache.pool.is_free(block)  # type: ignore[arg-type]
    for node in tree.nodes():
        owners.update(node.blocks)
    for lease in held:
        owners.update(lease.private_blocks)
        _check_lease(lease, tree)
    wrong = {block: count for block, count in owners.items() if count != 1}
    _require(1, not wrong, lambda: f"blocks with other than one owner: {wrong}; {cache!r}")
    private = sum(lease.num_private for lease in held)
    _require(2, private == cache.num_private_blocks, lambda: f"{private} private blocks; {cache!r}")
    pins = sum(1 + (lease.tail_pin is not None) for lease in held)
    handles = sum(1 for _ in tree.handles())
    _require(4, pins == handles, lambda: f"{handles} handles for leases that hold {pins}")


def check_tree(tree: RadixTree) -> None:
    """Check invariants 3 to 6 and the tree's share of 2."""
    below: Counter[int] = Counter()
    for handle in tree.handles():
        node = handle.node
        _require(4, node is not None, lambda: "a dead handle is still registered")
        while node is not None:
            below[id(node)] += 1
            node = node.parent
    evictable = protected = 0
    leaves = set()
    in_namespace: Counter[int] = Counter()
    for node in tree.nodes():
        in_namespace[id(node.root)] += len(node.blocks)
        _check_node(node, tree.block_size)
        _require(
            4, node.lock_ref == below[id(node)], lambda: f"{node!r} has {below[id(node)]} handles"
        )
        if node.lock_ref:
            protected += len(node.blocks)
        else:
            evictable += len(node.blocks)
            if node.children is None and not node.is_root:
                leaves.add(node)
    indexed = list(tree.evictable)
    _require(
        5, len(indexed) == len(leaves), lambda: f"{len(indexed)} indexed of {len(leaves)} leaves"
    )
    _require(
        5, set(indexed) == leaves, lambda: "the eviction index holds other nodes than the leaves"
    )
    tree.evictable.check()
    _require(2, evictable == tree.num_evictable_blocks, lambda: f"{evictable} evictable; {tree!r}")
    _require(2, protected == tree.num_protected_blocks, lambda: f"{protected} protected; {tree!r}")
    for root in tree.roots():
        counted = in_namespace[id(root)]
        _require(2, root.num_cached == counted, lambda: f"{root!r} has {counted} blocks below it")


def draw(tree: RadixTree) -> str:
    """Return the tree as indented text, a line a node. Complexity: O(tokens)."""
    lines = []
    for node in tree.nodes():
        depth = 0
        above = node.parent
        while above is not None:
            depth, above = depth + 1, above.parent
        label = f"root {node.namespace}" if node.is_root else f"{unpack_ids(node.key)}"
        lines.append(f"{'  ' * depth}{label} -> {list(node.blocks)} lock_ref={node.lock_ref}")
    return "\n".join(lines)


def _check_node(node: Node, block_size: int) -> None:
    num_tokens = len(node.key) // ID_BYTES
    above = node.parent.end_len if node.parent else 0
    _require(3, node.end_len == above + num_tokens, lambda: f"{node!r} ends in the wrong place")
    _require(
        3, num_tokens == len(node.blocks) * block_size, lambda: f"{node!r} has {num_tokens} tokens"
    )
    _require(
        3, node.is_root == (num_tokens == 0), lambda: f"{node!r} is empty, or a root that is not"
    )
    _require(
        3, node.children is None or len(node.children) > 0, lambda: f"{node!r} keeps an empty map"
    )
    first_blocks = []
    for child in node.children or ():
        first_blocks.append(child.first_block(block_size * ID_BYTES))
        _require(3, child.parent is node, lambda: f"{child!r} does not point back to {node!r}")
        _require(3, child.namespace == node.namespace, lambda: f"{child!r} is in another namespace")
        _require(
            6, child.last_access <= node.last_access, lambda: f"{child!r} is younger than {node!r}"
        )
        assert node.children is not None
        _require(
            3, node.children.exact(first_blocks[-1]) is child, lambda: f"{child!r} is misfiled"
        )
    _require(
        3, first_blocks == sorted(set(first_blocks)), lambda: f"{node!r}'s children are unsorted"
    )


def _check_lease(lease: Lease, tree: RadixTree) -> None:
    _require(7, lease.handle is not None, lambda: f"{lease!r} is dead but held")
    assert lease.handle is not None
    path = tree.path_blocks(lease.handle)
    shared = lease.table[: lease.num_shared]
    _require(7, path == shared, lambda: f"the path is {path}, the table begins {shared}")


def _check_req(req: Req, scheduler: Scheduler) -> None:
    is_running = req.state is ReqState.RUNNING
    _require(
        9, is_running == (req.req_id in scheduler.queues.running), lambda: f"{req!r} is misplaced"
    )
    _require(7, is_running == (req.lease is not None), lambda: f"{req!r} with {req.lease!r}")
    _require(7, 0 <= req.computed_len < req.total_len, lambda: f"{req!r} has computed too much")
    if req.lease is None:
        return
    block_size = scheduler.cache.block_size
    covered = len(req.lease.table) * block_size
    under_way = 1 if scheduler.flights else 0  # the token that the step ahead computes on
    most = req.total_len + under_way + block_size - 1
    _require(7, req.computed_len <= covered <= most, lambda: f"{req!r}: {covered}")
    node = req.lease.handle.node if req.lease.handle else None
    while node is not None:
        start, end = node.end_len * ID_BYTES - len(node.key), node.end_len * ID_BYTES
        _require(7, req.tokens[start:end] == node.key, lambda: f"{req!r} is locked to other tokens")
        _require(
            10, node.namespace == req.spec.namespace, lambda: f"{req!r} reads another namespace"
        )
        node = node.parent


def _check_in_flight(scheduler: Scheduler) -> None:
    if not scheduler.flights:
        pins = [req for req in scheduler.queues if req.lease and req.lease.tail_pin]
        _require(8, not pins, lambda: f"no plan is in flight, but copies are pending for {pins}")
    for place, flight in enumerate(scheduler.flights):
        plan = flight.plan
        if place > 0 or plan.follows is None:
            _check_named_blocks(plan, scheduler)
        for _, row, req in flight.live_rows():
            _check_written_blocks(row, req, scheduler)


def _check_named_blocks(plan: StepPlan, scheduler: Scheduler) -> None:
    named = {block for row in plan.reqs for block in unpack_ids(row.block_table)}
    named.update(block for copy in plan.copies for block in (copy.source, copy.target))
    swapped_in = [block for swap in plan.swap_ins for block in unpack_ids(swap.blocks)]
    named.update(swapped_in)
    free = [block for block in named if scheduler.cache.pool.is_free(block)]  # type: ignore[arg-type]
    _require(8, not free, lambda: f"step {plan.step} names the free blocks {free}")
    sources = {copy.source for copy in plan.copies}
    targets = [copy.target for copy in plan.copies] + swapped_in
    _require(8, sources.isdisjoint(targets), lambda: "a block is copied from and to in one step")
    _require(8, len(targets) == len(set(targets)), lambda: "two copies go to one block")


def _check_written_blocks(row: ScheduledReq, req: Req, scheduler: Scheduler) -> None:
    block_size = scheduler.cache.block_size
    first, end = row.start // block_size, -(-(row.start + row.extend_len) // block_size)
    written = unpack_ids(row.block_table)[first:end]
    lease = req.lease
    own = lease.table[max(first, lease.num_shared) : end].tolist() if lease else []
    _require(8, written == own, lambda: f"{row} writes to {written}; {req!r} has {own}")


def _check_swap_space(scheduler: Scheduler) -> None:
    space, plan = scheduler.swap_space, scheduler.in_flight
    owners: Counter[int] = Counter(space.being_read)
    for block in range(space.pool.num_blocks):
        owners[block] += space.pool.is_free(block)  # type: ignore[arg-type]
    for req in scheduler.queues:
        if req.swapped is None:
            continue
        saved = req.swapped
        owners.update(saved.host_blocks)
        end = saved.first_block + len(saved.host_blocks)
        covered = -(-saved.num_tokens // space.block_size)
        _require(11, req.state is ReqState.WAITING, lambda: f"{req!r} runs with {saved}")
        _require(11, end == covered, lambda: f"{saved} covers {end} blocks, not {covered}")
        _require(
            11, saved.num_tokens < req.total_len, lambda: f"{req!r} has saved too much: {saved}"
        )
    wrong = {block: count for block, count in owners.items() if count != 1}
    _require(11, not wrong, lambda: f"host blocks with other than one owner: {wrong}; {space!r}")
    if plan is None:
        _require(
            11, not space.being_read, lambda: "no plan is in flight, but host blocks are being read"
        )
        return
    outs = [(block, s.req_id) for s in plan.swap_outs for block in unpack_ids(s.host_blocks)]
    written = dict(outs)
    _require(11, len(written) == len(outs), lambda: f"two swap-outs go to one host block: {outs}")
    for swap in plan.swap_ins:
        for block in unpack_ids(swap.host_blocks):
            _require(
                11, block in space.being_read, lambda: f"{swap} reads a block that may be taken"
            )
            owner = written.get(block, swap.req_id)
            _require(11, owner == swap.req_id, lambda: f"{swap} reads what {owner} overwrites")


def _require(number: int, holds: bool, message: Callable[[], str]) -> None:
    """Raise unless `holds`. The message is made only then: a check runs thousands of times."""
    if not holds:
        raise InvariantError(number, message())
