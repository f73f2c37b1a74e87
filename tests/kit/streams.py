"""Words to read the streams of an `AsyncEngine`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.kit.engines import assert_idle, until

if TYPE_CHECKING:
    from radixserve.engine.async_engine import AsyncEngine
    from radixserve.engine.request import GenerateRequest, TextDelta
    from radixserve.types import FinishReason


async def read(engine: AsyncEngine, request: GenerateRequest) -> list[TextDelta]:
    async with engine.submit(request) as stream:
        return [delta async for delta in stream]


def joined(deltas: list[TextDelta]) -> tuple[str, list[int], FinishReason | None]:
    assert all(delta.finish_reason is None for delta in deltas[:-1])
    ids = [token for delta in deltas for token in delta.token_ids]
    return "".join(delta.text for delta in deltas), ids, deltas[-1].finish_reason


async def idle(engine: AsyncEngine) -> None:
    await until(lambda: not engine.core.has_work)
    assert_idle(engine.core)
    assert not engine._streams
