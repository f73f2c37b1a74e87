"""One run: ask what a server takes, warm it up, load it, read what it counted meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import aiohttp

from radixserve.bench.arrivals import arrival_times
from radixserve.bench.counters import ServerCounters, engine_counters, fetch_counters
from radixserve.bench.dialogue import Form, start_dialogues
from radixserve.bench.http_target import CHAT, COMPLETIONS, HttpTarget, RequestFields, open_session
from radixserve.bench.load import Load, run_load
from radixserve.bench.probe import find_model, probe_ids
from radixserve.bench.wording import DEFAULT_ID_RANGE
from radixserve.bench.workload import Drawn, single
from radixserve.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from radixserve.bench.target import Outcome, Target
    from radixserve.bench.workload import Session
    from radixserve.engine.async_engine import AsyncEngine

WARM_UP_LEN = 64
WARM_UP_OUTPUT_LEN = 8
FLUSH = "/cache/flush"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """How a load is sent, whoever answers it."""

    seed: int = 0
    """Of the drawn pieces and the arrivals."""
    id_range: tuple[int, int] = DEFAULT_ID_RANGE
    request_rate: float = float("inf")
    """Sessions begun a second; infinite for all at once."""
    concurrency: int | None = None
    """Most requests under way; None for no limit."""
    num_warmups: int = 1
    temperature: float = 0.0
    ignores_eos: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Which server is loaded, and how it is spoken to."""

    url: str
    model: str | None = None
    """None for the first that it lists."""
    api_key: str | None = None
    endpoint: Literal["completions", "chat"] = "completions"
    form: Literal["auto", "ids", "text"] = "auto"
    """How prompts of completions are sent; auto is ids where the server takes them."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Fields added to every request."""
    flushes: bool = False
    """Whether its cache is emptied after the warm-up."""
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a run gave."""

    load: Load
    model: str
    form: Form
    counted: ServerCounters | None
    """By the server itself while the load ran; None where it does not tell."""
    notes: tuple[str, ...] = ()
    """What a reader of the figures should know."""


async def run_against_server(
    sessions: Sequence[Session],
    server: ServerSettings,
    settings: LoadSettings,
    *,
    on_outcome: Callable[[Outcome], None] | None = None,
) -> Run:
    """Load a server and return what came of it.

    Raises:
        ConfigError: it cannot be reached, or it does not answer the warm-up.
    """
    async with open_session(
        server.url, api_key=server.api_key, timeout_s=server.timeout_s
    ) as session:
        model = server.model or await find_model(session, server.url)
        form = await _choose_form(session, model, sessions, server, settings)
        fields = RequestFields(
            model=model,
            path=CHAT if form is Form.CHAT else COMPLETIONS,
            temperature=settings.temperature,
            ignores_eos=settings.ignores_eos,
            wants_ids=form is Form.IDS and any(len(each.turns) > 1 for each in sessions),
            extra=server.extra,
        )
        target = HttpTarget(session, fields)
        await _warm_up(target, form, settings)
        note = await _flush(session) if server.flushes else None
        before = await fetch_counters(session)
        load = await _send(sessions, target, form, settings, on_outcome)
        after = await fetch_counters(session)
    counted = after - before if after is not None and before is not None else None
    notes = () if note is None else (note,)
    return Run(load=load, model=model, form=form, counted=counted, notes=notes)


async def run_against_engine(
    sessions: Sequence[Session],
    engine: AsyncEngine,
    settings: LoadSettings,
    *,
    on_outcome: Callable[[Outcome], None] | None = None,
) -> Run:
    """Load an engine that has been started, and return what came of it.

    Raises:
        ConfigError: it does not answer the warm-up.
    """
    from radixserve.bench.engine_target import EngineTarget

    target = EngineTarget(
        engine, temperature=settings.temperature, ignores_eos=settings.ignores_eos
    )
    await _warm_up(target, Form.IDS, settings)
    before = engine_counters(engine)
    load = await _send(sessions, target, Form.IDS, settings, on_outcome)
    counted = engine_counters(engine) - before
    return Run(load=load, model=engine.info.name, form=Form.IDS, counted=counted)


async def _choose_form(
    session: aiohttp.ClientSession,
    model: str,
    sessions: Sequence[Session],
    server: ServerSettings,
    settings: LoadSettings,
) -> Form:
    if server.endpoint == "chat":
        if server.form == "ids":
            raise ConfigError("a chat has messages of text: prompts of token ids need completions")
        return Form.CHAT
    if server.form == "auto":
        return (await probe_ids(session, model, settings.id_range)).form_for(sessions)
    return Form(server.form)


async def _send(
    sessions: Sequence[Session],
    target: Target,
    form: Form,
    settings: LoadSettings,
    on_outcome: Callable[[Outcome], None] | None,
) -> Load:
    return await run_load(
        start_dialogues(sessions, form, seed=settings.seed, id_range=settings.id_range),
        target,
        arrivals=arrival_times(len(sessions), settings.request_rate, seed=settings.seed),
        concurrency=settings.concurrency,
        on_outcome=on_outcome,
    )


async def _warm_up(target: Target, form: Form, settings: LoadSettings) -> None:
    """Let the target pay for what it does once, with prompts that the load does not have."""
    sessions = [
        single(f"warm-up/{i}", [Drawn(f"warm-up/{i}", WARM_UP_LEN)], WARM_UP_OUTPUT_LEN)
        for i in range(settings.num_warmups)
    ]
    dialogues = start_dialogues(sessions, form, seed=settings.seed, id_range=settings.id_range)
    load = await run_load(dialogues, target, arrivals=[0.0] * len(dialogues), concurrency=1)
    for outcome in load.outcomes:
        if outcome.failure is not None:
            failure = outcome.failure
            raise ConfigError(f"the warm-up request failed: {failure.kind}: {failure.detail}")


async def _flush(session: aiohttp.ClientSession) -> str | None:
    """Empty the server's cache. Returns: a note if that did not work."""
    try:
        async with session.post(FLUSH, json={}) as response:
            if response.status == 200:
                return None
            reason = f"HTTP {response.status}"
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        reason = type(error).__name__
    return f"the cache was not flushed: POST {FLUSH} gave {reason}"
