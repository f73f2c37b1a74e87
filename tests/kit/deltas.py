"""Run requests on a blocking engine and keep all that their deltas say."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve.engine.request import GenerateRequest, TextDelta
    from radixserve.engine.sync_engine import Engine
    from radixserve.types import ReqId


def run_merged(engine: Engine, requests: Sequence[GenerateRequest]) -> list[TextDelta]:
    """Run requests to their ends; return, for each, one delta that says what all of its said."""
    names = [engine.add(request) for request in requests]
    merged: dict[ReqId, TextDelta] = {}
    while engine.has_work:
        for event in engine.step():
            assert event.error is None
            before = merged.get(event.req_id)
            merged[event.req_id] = before.merged_with(event.delta) if before else event.delta
    return [merged[name] for name in names]
