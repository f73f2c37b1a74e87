"""What becomes of cached blocks, published for routers that keep a copy of the cache's shape.

    PUB     [topic, sequence number, batch]         as it happens; may lose, as PUB sockets do
    ROUTER  <- ["", first number]                   whoever has found a gap asks for what it missed
            -> ["", number, batch] ... ["", -1, ""]

    batch   msgpack [time, [event, ...], 0]
    event   {type: BlockStored, block_hashes, parent_block_hash, token_ids, block_size, lora_id,
             medium, lora_name, extra_keys}
            {type: BlockRemoved, block_hashes, medium}
            {type: AllBlocksCleared}

Numbers are 8 bytes, the highest first. A block's hash is 64 bits of a digest of all tokens up to
its end, the model, the adapter, the salt and the cache's owner: the same in every process, and
never the same in two namespaces. `medium` is always "GPU", which is how consumers name an engine's
own memory, whatever it is made of.

Source: the shape is that of vLLM's and SGLang's `kv_events`, as consumers decode it.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import deque
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from radixserve.core.tree_events import Cleared, Removed, Stored
from radixserve.errors import ConfigError
from radixserve.types import ID_BYTES, unpack_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from radixserve.core.tree_events import TreeEvent
    from radixserve.types import Namespace, PackedIds

REPLAYED_BATCHES = 10_000
QUEUED_MESSAGES = 100_000
"""For each subscriber that is slow; beyond it messages are dropped, and it finds a gap."""
MEDIUM = "GPU"
END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)
_HASH_BYTES = 8


class BlockHashes:
    """The hash of every cached block, by its id."""

    def __init__(self, block_size: int) -> None:
        self._block_bytes = block_size * ID_BYTES
        self._digests: dict[int, bytes] = {}

    def __repr__(self) -> str:
        return f"<BlockHashes of {len(self._digests)} blocks>"

    def __len__(self) -> int:
        return len(self._digests)

    def of(self, block: int) -> int:
        """Return a cached block's hash."""
        return int.from_bytes(self._digests[block], "big")

    def add(self, stored: Stored) -> list[int]:
        """Take in a run of blocks and return their hashes. Complexity: O(bytes)."""
        digest = (
            _root_digest(stored.namespace)
            if stored.parent is None
            else self._digests[stored.parent]
        )
        for block, tokens in zip(stored.blocks, _cut(stored.key, self._block_bytes), strict=True):
            digest = blake2b(digest + tokens, digest_size=_HASH_BYTES).digest()
            self._digests[block] = digest
        return [self.of(block) for block in stored.blocks]

    def remove(self, blocks: Iterable[int]) -> list[int]:
        """Forget blocks and return the hashes they had."""
        return [int.from_bytes(self._digests.pop(block), "big") for block in blocks]

    def clear(self) -> None:
        """Forget all of them."""
        self._digests.clear()


class EventEncoder:
    """Makes the events that consumers know of the tree's own.

    Args:
        block_size: Tokens a block.
    """

    def __init__(self, block_size: int) -> None:
        self.hashes = BlockHashes(block_size)
        self._block_size = block_size

    def encode(self, event: TreeEvent) -> dict[str, Any]:
        """Return one event. Mutates: the known hashes."""
        if isinstance(event, Stored):
            return self._stored(event)
        if isinstance(event, Removed):
            hashes = self.hashes.remove(event.blocks)
            return {"type": "BlockRemoved", "block_hashes": hashes, "medium": MEDIUM}
        assert isinstance(event, Cleared)
        self.hashes.clear()
        return {"type": "AllBlocksCleared"}

    def _stored(self, event: Stored) -> dict[str, Any]:
        parent = None if event.parent is None else self.hashes.of(event.parent)
        namespace = event.namespace
        extra: list[str] = []
        if event.parent is None:
            extra = [part for part in (namespace.owner, namespace.salt) if part]
        return {
            "type": "BlockStored",
            "block_hashes": self.hashes.add(event),
            "parent_block_hash": parent,
            "token_ids": unpack_ids(event.key),
            "block_size": self._block_size,
            "lora_id": None,
            "medium": MEDIUM,
            "lora_name": namespace.adapter or None,
            "extra_keys": [extra, *[None] * (len(event.blocks) - 1)] if extra else None,
        }


class KVEventPublisher:
    """A PUB socket, and a ROUTER socket that says again what was published lately.

    Publishing is done by whoever calls; answering, in a thread of its own.

    Args:
        endpoint: Where to publish, as in tcp://*:5557; * binds all interfaces.
        replay_endpoint: Where to answer who missed something; nowhere when None.
        topic: First frame of every message.
        block_size: Tokens a block.
    Raises:
        ConfigError: pyzmq or msgpack is missing, or an endpoint cannot be bound.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        replay_endpoint: str | None = None,
        topic: str = "",
        block_size: int,
    ) -> None:
        zmq, self._pack = _import_extra()
        self._failure: type[Exception] = zmq.ZMQError
        self._encoder = EventEncoder(block_size)
        self._topic = topic.encode()
        self._next_number = 0
        self._sent: deque[tuple[bytes, bytes]] = deque(maxlen=REPLAYED_BATCHES)
        self._sent_lock = threading.Lock()
        self._context = zmq.Context()
        self._publisher = self._bind(zmq.PUB, endpoint, "kv_events_endpoint")
        self._replay_thread: threading.Thread | None = None
        self.endpoint = str(self._publisher.getsockopt_string(zmq.LAST_ENDPOINT))
        self.replay_endpoint = ""
        if replay_endpoint is not None:
            router = self._bind(zmq.ROUTER, replay_endpoint, "kv_events_replay_endpoint")
            self.replay_endpoint = str(router.getsockopt_string(zmq.LAST_ENDPOINT))
            self._replay_thread = threading.Thread(
                target=self._answer_replays,
                args=(router, zmq.ContextTerminated),
                name="radixserve-kv-replay",
                daemon=True,
            )
            self._replay_thread.start()

    def __repr__(self) -> str:
        return f"<KVEventPublisher {self.endpoint}, {self._next_number} batches>"

    def publish(self, events: list[TreeEvent]) -> None:
        """Send what happened in one step; nothing if nothing did. Never blocks."""
        if not events:
            return
        encoded = [self._encoder.encode(event) for event in events]
        payload = self._pack([time.time(), encoded, 0])
        number = self._next_number.to_bytes(8, "big")
        self._next_number += 1
        with self._sent_lock:
            self._sent.append((number, payload))
        self._publisher.send_multipart((self._topic, number, payload))

    def close(self) -> None:
        """Close the sockets and end the thread; idempotent."""
        if self._publisher.closed:
            return
        self._publisher.close(linger=0)
        self._context.term()
        if self._replay_thread is not None:
            self._replay_thread.join()

    # -- inside --------------------------------------------------------------------------------

    def _bind(self, kind: int, endpoint: str, setting: str) -> Any:
        made = self._context.socket(kind)
        made.linger = 0
        made.set_hwm(QUEUED_MESSAGES)
        try:
            made.bind(endpoint)
        except self._failure as failed:
            made.close()
            self._context.destroy(linger=0)
            raise ConfigError(f"{setting}: cannot bind {endpoint!r}: {failed}") from None
        return made

    def _answer_replays(self, router: Any, terminated: type[Exception]) -> None:
        """Answer until the context is terminated."""
        with contextlib.suppress(terminated):
            while True:
                self._answer(router, router.recv_multipart())
        router.close(linger=0)

    def _answer(self, router: Any, question: list[bytes]) -> None:
        if len(question) != 3 or len(question[2]) > _HASH_BYTES:
            return  # whoever asks like this would not understand an answer
        client, empty, first = question
        with self._sent_lock:
            sent = list(self._sent)
        for number, payload in sent:
            if int.from_bytes(number, "big") >= int.from_bytes(first, "big"):
                router.send_multipart((client, empty, number, payload))
        router.send_multipart((client, empty, END_OF_REPLAY, b""))


def default_topic(model: str) -> str:
    """Return the topic by which consumers tell servers and models apart."""
    return f"kv@{socket.gethostname()}@{model}"


def _import_extra() -> tuple[Any, Callable[[Any], bytes]]:
    try:
        import msgpack  # type: ignore[import-untyped]
        import zmq
    except ImportError as missing:
        raise ConfigError(
            f"kv_events_endpoint needs the package {missing.name}: pip install 'radixserve[events]'"
        ) from None
    return zmq, msgpack.packb


def _root_digest(namespace: Namespace) -> bytes:
    """Return what stands for the empty prefix of a namespace."""
    digest = blake2b(digest_size=_HASH_BYTES)
    for part in (namespace.model, namespace.adapter, namespace.salt, namespace.owner):
        encoded = part.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(4, "big") + encoded)
    return digest.digest()


def _cut(key: PackedIds, size: int) -> Iterator[bytes]:
    return (key[start : start + size] for start in range(0, len(key), size))
