"""What programs tell of the future by themselves, and that it can be turned off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import pytest

from radixserve.engine.request import Ending, ReleaseHint
from radixserve.errors import IncompleteError, StepLimitError
from radixserve.frontend import EmbeddedBackend, Prompt, connect, program
from tests.frontend.served import served
from tests.kit.engines import until

if TYPE_CHECKING:
    from radixserve.engine.request import GenerateRequest
    from radixserve.types import ReqId

WAYS = ("embedded", "remote")


def look(side: Literal["left", "right"]) -> str:
    """Look somewhere."""
    return f"nothing on the {side}"


@program(ttl=20.0, max_tokens=120)
async def foreseeing(p: Prompt) -> None:
    """Say something of the future in every way there is."""
    p.system("You look around.")
    p.user("Where is it?")
    await p.commit()
    (other,) = p.fork(1)
    other.hint(is_end=True)
    await other.gen("aside", max_tokens=4)
    try:
        await p.act([look], result=Literal["here"], max_steps=1)
    except (StepLimitError, IncompleteError):
        return


@pytest.fixture
def submitted(backend: EmbeddedBackend, monkeypatch: pytest.MonkeyPatch) -> list[GenerateRequest]:
    """Return what the engine is asked from now on."""
    found: list[GenerateRequest] = []
    submit = backend.engine.submit

    def spying(request: GenerateRequest) -> Any:
        found.append(request)
        return submit(request)

    monkeypatch.setattr(backend.engine, "submit", spying)
    return found


async def run_on(backend: EmbeddedBackend, way: str, *, sends_hints: bool) -> None:
    """Run the program in one way."""
    if way == "embedded":
        await foreseeing.using(EmbeddedBackend(backend.engine, sends_hints=sends_hints))()
        return
    async with served(backend.engine) as server:
        remote = connect(server.url, sends_hints=sends_hints)
        await foreseeing.using(remote)()
        await remote.close()


@pytest.mark.parametrize("way", WAYS)
async def test_the_engine_is_told_what_a_program_knows(
    backend: EmbeddedBackend, submitted: list[GenerateRequest], way: str
) -> None:
    await run_on(backend, way, sends_hints=True)
    hints = [request.hint for request in submitted]
    assert len(hints) == 3
    assert all(hint.hold_s == 20.0 for hint in hints)
    assert [hint.is_session_end for hint in hints] == [False, True, False]
    assert [hint.ending for hint in hints] == [Ending.UNKNOWN, Ending.UNKNOWN, Ending.TOOL]


@pytest.mark.parametrize("way", WAYS)
async def test_an_engine_that_wants_no_hints_gets_none(
    backend: EmbeddedBackend, submitted: list[GenerateRequest], way: str
) -> None:
    await run_on(backend, way, sends_hints=False)
    assert len(submitted) == 3
    assert all(request.hint == ReleaseHint() for request in submitted)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("sends_hints", [True, False])
async def test_the_end_of_a_run_is_told(
    backend: EmbeddedBackend, monkeypatch: pytest.MonkeyPatch, way: str, sends_hints: bool
) -> None:
    told: list[bool] = []
    forget = backend.engine.forget

    def spying(name: ReqId, *, is_end: bool = False) -> None:
        told.append(is_end)
        forget(name, is_end=is_end)

    monkeypatch.setattr(backend.engine, "forget", spying)
    await run_on(backend, way, sends_hints=sends_hints)
    await until(lambda: len(told) >= 3)
    assert set(told) == {sends_hints}
