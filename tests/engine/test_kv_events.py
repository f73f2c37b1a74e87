"""KV events as a router gets them: over real sockets, decoded, and replayed into a copy."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgpack  # type: ignore[import-untyped]
import pytest
import zmq
import zmq.asyncio

from radixserve.core.tree_events import Cleared, Removed, Stored
from radixserve.engine.async_engine import AsyncEngine
from radixserve.engine.kv_events import END_OF_REPLAY, EventEncoder, KVEventPublisher
from radixserve.errors import ConfigError
from radixserve.types import Namespace, pack_ids, unpack_ids
from tests.kit.engines import ask, engine_config
from tests.kit.streams import read
from tests.kit.truth import paths_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

PROMPT = list(range(10, 60))


class Copy:
    """What a router knows of a cache: each block's own tokens and the block before it."""

    def __init__(self) -> None:
        self.blocks: dict[int, tuple[int | None, tuple[int, ...], str]] = {}
        self.next_number = 0

    def take(self, number: bytes, payload: bytes) -> None:
        assert int.from_bytes(number, "big") == self.next_number, "a gap"
        self.next_number += 1
        ts, events, rank = msgpack.unpackb(payload)
        assert ts > 1e9
        assert rank == 0
        for event in events:
            self.hear(event)

    def hear(self, event: dict[str, Any]) -> None:
        if event["type"] == "AllBlocksCleared":
            self.blocks.clear()
        elif event["type"] == "BlockRemoved":
            for name in event["block_hashes"]:
                del self.blocks[name]
        else:
            assert event["type"] == "BlockStored"
            self.store(event)

    def store(self, event: dict[str, Any]) -> None:
        size, tokens = event["block_size"], event["token_ids"]
        before = event["parent_block_hash"]
        assert before is None or before in self.blocks
        keys = event["extra_keys"]
        salt = keys[0][-1] if keys else self.blocks[before][2] if before is not None else ""
        for place, name in enumerate(event["block_hashes"]):
            assert name not in self.blocks
            run = tuple(tokens[place * size : (place + 1) * size])
            assert len(run) == size
            self.blocks[name] = (before, run, salt)
            before = name

    def paths(self) -> set[tuple[str, tuple[int, ...]]]:
        """Every block by its salt and the whole prefix that it ends."""
        return {(salt, self.prefix(name)) for name, (_, _, salt) in self.blocks.items()}

    def prefix(self, name: int) -> tuple[int, ...]:
        before, run, _ = self.blocks[name]
        return (() if before is None else self.prefix(before)) + run


def paths_in(engine: AsyncEngine) -> set[tuple[str, tuple[int, ...]]]:
    tree = engine.core.scheduler.cache.tree
    return {(namespace.salt, tokens) for namespace, tokens in paths_of(tree)}


@pytest.fixture
async def engine(folder: Path) -> AsyncIterator[AsyncEngine]:
    """A small engine that publishes on any two free ports."""
    config = engine_config(folder, num_blocks=16)
    cache = replace(
        config.cache,
        kv_events_endpoint="tcp://127.0.0.1:*",
        kv_events_replay_endpoint="tcp://127.0.0.1:*",
    )
    engine = AsyncEngine.from_config(replace(config, cache=cache))
    await engine.start()
    yield engine
    await engine.stop()


def publisher_of(engine: AsyncEngine) -> KVEventPublisher:
    publisher = engine.core._kv_events
    assert publisher is not None
    return publisher


async def catch_up(engine: AsyncEngine, copy: Copy, socket: zmq.asyncio.Socket) -> None:
    """Take all that has been published so far."""
    while copy.next_number < publisher_of(engine)._next_number:
        topic, number, payload = await asyncio.wait_for(socket.recv_multipart(), 30)
        assert topic.startswith(b"kv@")
        assert topic.endswith(b"@tiny")
        copy.take(number, payload)


async def test_a_copy_fed_by_events_has_the_blocks_of_the_tree(engine: AsyncEngine) -> None:
    copy = Copy()
    with zmq.asyncio.Context() as context, context.socket(zmq.SUB) as socket:
        socket.connect(publisher_of(engine).endpoint)
        socket.subscribe(b"kv@")
        await asyncio.sleep(0.2)  # a subscription that has not arrived loses what is sent
        for number in range(12):
            salt = "x" if number % 3 == 0 else ""
            prompt = [*PROMPT, *range(60, 60 + 3 * number)]
            await read(engine, ask(prompt, max_tokens=20, cache_salt=salt))
        await catch_up(engine, copy, socket)
        assert copy.paths() == paths_in(engine)
        assert engine.stats().evicted_blocks > 0

        await engine.cache.flush(lambda namespace: namespace.salt == "x")
        await catch_up(engine, copy, socket)
        assert copy.paths() == paths_in(engine) != set()

        await engine.cache.flush()
        await catch_up(engine, copy, socket)
        assert copy.paths() == paths_in(engine) == set()


async def test_who_comes_late_asks_for_what_was_missed(engine: AsyncEngine) -> None:
    for number in range(4):
        await read(engine, ask([*PROMPT, *range(60, 60 + 9 * number)], max_tokens=20))
    copy = Copy()
    with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.connect(publisher_of(engine).replay_endpoint)
        await socket.send_multipart([b"", (0).to_bytes(8, "big")])
        while True:
            _, place, payload = await asyncio.wait_for(socket.recv_multipart(), 30)
            if place == END_OF_REPLAY:
                break
            copy.take(place, payload)

    assert copy.paths() == paths_in(engine) != set()


async def test_who_missed_the_beginning_only_is_told_only_that(engine: AsyncEngine) -> None:
    for number in range(3):
        await read(engine, ask([number + 5, *PROMPT], max_tokens=1))
    sent = publisher_of(engine)._next_number
    with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.connect(publisher_of(engine).replay_endpoint)
        await socket.send_multipart([b"nonsense"])
        await socket.send_multipart([b"", (sent - 1).to_bytes(8, "big")])
        first = await asyncio.wait_for(socket.recv_multipart(), 30)
        last = await asyncio.wait_for(socket.recv_multipart(), 30)

    assert int.from_bytes(first[1], "big") == sent - 1
    assert last == [b"", END_OF_REPLAY, b""]


async def test_without_an_endpoint_nothing_is_recorded(folder: Path) -> None:
    engine = AsyncEngine.from_config(engine_config(folder))
    await engine.start()
    await read(engine, ask(PROMPT))
    assert engine.core.scheduler.cache.tree.events is None
    await engine.stop()


def test_hashes_tell_prefixes_namespaces_and_nothing_else_apart() -> None:
    def hashes(namespace: Namespace, tokens: list[int], blocks: list[int]) -> list[int]:
        stored = Stored(namespace, None, pack_ids(tokens), tuple(blocks))
        return list(EventEncoder(block_size=2).encode(stored)["block_hashes"])

    base = hashes(Namespace(), [1, 2, 3, 4], [7, 8])
    assert base == hashes(Namespace(), [1, 2, 3, 4], [1, 0])
    assert base[0] == hashes(Namespace(), [1, 2, 5, 6], [7, 8])[0]
    assert base[1] != hashes(Namespace(), [9, 2, 3, 4], [7, 8])[1]
    others = [
        Namespace(salt="a"),
        Namespace(adapter="a"),
        Namespace(model="a"),
        Namespace(owner="a"),
    ]
    assert len({hashes(other, [1, 2], [7])[0] for other in [Namespace(), *others]}) == 5


def test_a_run_that_grows_goes_on_from_the_block_before_it() -> None:
    encoder = EventEncoder(block_size=2)
    whole = EventEncoder(block_size=2).encode(
        Stored(Namespace(salt="s"), None, pack_ids([1, 2, 3, 4]), (0, 1))
    )
    first = encoder.encode(Stored(Namespace(salt="s"), None, pack_ids([1, 2]), (5,)))
    second = encoder.encode(Stored(Namespace(salt="s"), 5, pack_ids([3, 4]), (6,)))

    assert [*first["block_hashes"], *second["block_hashes"]] == whole["block_hashes"]
    assert second["parent_block_hash"] == first["block_hashes"][0]
    assert whole["extra_keys"] == [["s"], None]
    assert second["extra_keys"] is None
    removed = encoder.encode(Removed((6,)))
    assert removed["block_hashes"] == second["block_hashes"]
    assert encoder.encode(Cleared()) == {"type": "AllBlocksCleared"}
    assert len(encoder.hashes) == 0
    assert unpack_ids(pack_ids(whole["token_ids"])) == [1, 2, 3, 4]


@pytest.mark.parametrize("endpoint", ["nonsense", "tcp://not.a.host.of.mine:1"])
def test_an_endpoint_that_cannot_be_bound_is_a_config_error(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="kv_events_endpoint"):
        KVEventPublisher(endpoint, block_size=16)
    with pytest.raises(ConfigError, match="kv_events_replay_endpoint"):
        KVEventPublisher("tcp://127.0.0.1:*", replay_endpoint=endpoint, block_size=16)
