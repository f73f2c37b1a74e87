"""A runner over a tiny model with random weights, and words to drive it by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from radixserve.attention.select import select_backend
from radixserve.models.loader import load_model
from radixserve.runtime.kv_cache import KVCache
from radixserve.runtime.model_runner import ModelRunner
from radixserve.runtime.sampler import Sampler
from tests.kit.tiny_model import write_tiny_model

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve.models.loader import LoadedModel

    MakeRunner = Callable[..., ModelRunner]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_model(write_tiny_model(tmp_path_factory.mktemp("tiny")), dtype=torch.float32)


@pytest.fixture
def make_runner(tiny_model: LoadedModel) -> MakeRunner:
    """Builds a runner with an empty pool of 64 blocks of the given block size and dtype."""

    def make(block_size: int, kv_dtype: torch.dtype = torch.float32) -> ModelRunner:
        spec = tiny_model.spec
        cache = KVCache.allocate(spec, 64, block_size, kv_dtype)
        attention = select_backend("reference", cache.layers, num_qo_heads=spec.num_qo_heads)
        return ModelRunner(tiny_model.model, cache, attention, Sampler(spec.vocab_size))

    return make
