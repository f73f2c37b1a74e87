from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from radixserve.attention import select
from radixserve.attention.backend import AttentionBackend, LayerKV
from radixserve.attention.reference import ReferenceAttention
from radixserve.attention.select import select_backend
from radixserve.errors import BackendUnavailableError

if TYPE_CHECKING:
    from collections.abc import Sequence

LAYERS = [LayerKV(k=torch.zeros(2, 4, 2, 8), v=torch.zeros(2, 4, 2, 8))]


@pytest.mark.parametrize("name", ["reference", "auto"])
def test_the_reference_backend_runs_everywhere(name: str) -> None:
    assert isinstance(select_backend(name, LAYERS, num_qo_heads=4), ReferenceAttention)


def test_a_name_that_nobody_has_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BackendUnavailableError, match=r"'warp'; known: .*reference"):
        select_backend("warp", LAYERS, num_qo_heads=4)


def test_auto_says_of_each_backend_what_is_missing() -> None:
    with pytest.raises(BackendUnavailableError, match=r"reference: .* 3 query heads"):
        select_backend("auto", LAYERS, num_qo_heads=3)


def test_auto_passes_over_a_backend_that_cannot_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def needs_a_gpu(
        layers: Sequence[LayerKV], *, num_qo_heads: int, scale: float | None = None
    ) -> AttentionBackend:
        raise BackendUnavailableError("no GPU was found")

    monkeypatch.setattr(select, "BACKENDS", {**select.BACKENDS, "gpu": needs_a_gpu})
    monkeypatch.setattr(select, "AUTO_ORDER", ("gpu", "reference"))

    assert isinstance(select_backend("auto", LAYERS, num_qo_heads=4), ReferenceAttention)
