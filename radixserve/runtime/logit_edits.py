"""What a request's parameters do to its logits before a token is chosen.

In this order: repetition penalty, presence and frequency penalties, logit bias, and last the masks,
so that no bias can lift them: stop tokens before `min_tokens` are there, ids that are not allowed,
and the last token of a sequence that must not come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from radixserve.core.plan import SamplingState
    from radixserve.types import PackedIds

    Ids: TypeAlias = NDArray[np.int32]

Logits: TypeAlias = "NDArray[np.float32]"


def has_edits(state: SamplingState) -> bool:
    """Whether `edit_logits` would change anything for this row."""
    params = state.params
    return (
        params.has_penalties
        or bool(params.logit_bias)
        or params.allowed_token_ids is not None
        or bool(params.bad_words)
        or holds_stops_back(state)
    )


def edit_logits(logits: Logits, state: SamplingState) -> Logits:
    """Return one row's logits as the request's parameters change them; the row itself stays.

    Ids beyond the row are left out: no token that cannot be chosen needs an edit.

    Args:
        logits: [vocab], float32.
        state: The request's parameters and, where it has penalties, its tokens so far.
    Source: ids seen by a penalty come from the request alone, whatever was cached
        (llama.cpp #8971); the mask covers every stop id (vllm #5849).
    """
    edited = logits.copy()
    if state.params.has_penalties:
        _apply_penalties(edited, state)
    for token, bias in state.params.logit_bias:
        if token < len(edited):
            edited[token] += bias
    if state.params.allowed_token_ids is not None:
        _keep_only(edited, state.params.allowed_token_ids | state.params.stop_token_ids)
    if holds_stops_back(state):
        edited[within(state.params.stop_token_ids, len(edited))] = -np.inf
    edited[within(completing(state), len(edited))] = -np.inf
    return edited


def _keep_only(logits: Logits, tokens: Iterable[int]) -> None:
    kept = within(tokens, len(logits))
    values = logits[kept]
    logits[:] = -np.inf
    logits[kept] = values


def completing(state: SamplingState) -> list[int]:
    """Return the tokens that would complete a sequence that must not come."""
    output = np.frombuffer(state.output_ids, dtype=np.int32)
    found = []
    for *before, last in state.params.bad_words:
        start = len(output) - len(before)
        if start >= 0 and output[start:].tolist() == before:
            found.append(last)
    return found


def holds_stops_back(state: SamplingState) -> bool:
    """Whether the output is still too short to end."""
    return state.output_len < state.params.min_tokens and bool(state.params.stop_token_ids)


def _apply_penalties(logits: Logits, state: SamplingState) -> None:
    params = state.params
    if params.repetition_penalty != 1.0:
        seen, _ = count_ids(state.prompt_ids + state.output_ids, len(logits))
        values, penalty = logits[seen], np.float32(params.repetition_penalty)
        logits[seen] = np.where(values > 0, values / penalty, values * penalty)
    generated, counts = count_ids(state.output_ids, len(logits))
    logits[generated] -= np.float32(params.presence_penalty)
    logits[generated] -= np.float32(params.frequency_penalty) * counts.astype(np.float32)


def count_ids(packed: PackedIds, vocab_len: int) -> tuple[Ids, NDArray[np.int64]]:
    """Return the distinct ids of a run that lie in the vocabulary, and how often each occurs."""
    ids, counts = np.unique(np.frombuffer(packed, dtype=np.int32), return_counts=True)
    is_known = ids < vocab_len
    return ids[is_known], counts[is_known]


def within(tokens: Iterable[int], vocab_len: int) -> list[int]:
    """Return those ids that lie in the vocabulary."""
    return [token for token in tokens if token < vocab_len]
