"""From settings to a running core: the one place that knows how the parts fit together."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from radixserve import kernels
from radixserve.attention.select import has_kernels, select_backend
from radixserve.core.eviction.names import find_eviction_policy
from radixserve.core.prefix_cache import PrefixCache, UnsharedCache
from radixserve.core.scheduler import Scheduler
from radixserve.core.swap_space import SwapSpace
from radixserve.engine.compute import Compute
from radixserve.engine.decoder import build_decoder
from radixserve.engine.engine_core import EngineCore
from radixserve.engine.gpu import build_gpu_compute
from radixserve.engine.info import ModelInfo
from radixserve.engine.kv_events import KVEventPublisher, default_topic
from radixserve.engine.precision import choose_precision
from radixserve.engine.queue_limit import QueueLimit
from radixserve.errors import ConfigError
from radixserve.models.dtype import choose_kv_dtype
from radixserve.models.loader import load_model
from radixserve.models.source import resolve_model
from radixserve.runtime.host_kv import HostKV
from radixserve.runtime.kv_cache import KVCache, block_bytes
from radixserve.runtime.launch import ImmediateLauncher
from radixserve.runtime.memory import choose_num_blocks, choose_swap_blocks, free_memory_bytes
from radixserve.runtime.model_runner import ModelRunner
from radixserve.runtime.native_sampler import NativeSampler
from radixserve.runtime.sampler import Sampler
from radixserve.runtime.swap_costs import measure_swap_costs
from radixserve.text.chat_template import ChatTemplate
from radixserve.text.tokenizer import Tokenizer
from radixserve.text.tool_calls import find_parser

if TYPE_CHECKING:
    from radixserve.config import CacheConfig, EngineConfig, ModelConfig
    from radixserve.models.loader import LoadedModel
    from radixserve.models.progress import Progress
    from radixserve.runtime.sampler import StepSampler

_log = logging.getLogger(__name__)


def build_core(config: EngineConfig, *, progress: Progress | None = None) -> EngineCore:
    """Load the model, size the pool, wire everything.

    Args:
        progress: Told about downloads and conversions.
    Raises:
        ConfigError: a setting or the model cannot be used; says which and why.
    """
    device, dtype, _ = choose_precision(config)
    _set_num_threads(config.num_threads or len(os.sched_getaffinity(0)))
    folder = resolve_model(config.model.model, progress=progress)
    tokenizer = Tokenizer.from_folder(folder)
    template = load_chat_template(config.model, folder, tokenizer)
    loaded = load_model(folder, dtype=dtype, device=device)
    vocab_size = min(tokenizer.vocab_size, loaded.spec.vocab_size)
    compute = _build_compute(config, loaded, device, vocab_size)
    kv_cache = compute.kv_cache
    scheduler = _build_scheduler(
        config,
        loaded,
        kv_cache.num_blocks,
        _build_swap_space(config, compute, loaded.spec.max_position),
    )
    core = EngineCore(
        scheduler=scheduler,
        runner=compute.runner,
        launcher=compute.launcher,
        tokenizer=tokenizer,
        chat_template=template,
        info=ModelInfo(
            name=config.model.served_model_name or _name_of(config.model.model),
            max_model_len=scheduler.max_model_len,
            vocab_size=vocab_size,
            kv_capacity_tokens=kv_cache.num_blocks * config.cache.block_size,
            created=int(time.time()),
            dtype=str(dtype).removeprefix("torch."),
            folder=folder,
        ),
        eos_token_ids=loaded.eos_token_ids | tokenizer.eos_token_ids,
        queue_limit=QueueLimit(
            max_reqs=config.scheduler.max_queue_len,
            max_tokens=config.scheduler.max_queued_tokens,
        ),
        seed=config.seed,
    )
    _publish_events(core, config.cache)
    return core


def _build_sampler(config: EngineConfig, vocab_size: int) -> StepSampler:
    if has_kernels(config.attention.backend):
        return NativeSampler(vocab_size)
    return Sampler(vocab_size)


def _build_compute(
    config: EngineConfig, loaded: LoadedModel, device: torch.device, vocab_size: int
) -> Compute:
    if device.type != "cuda":
        return _build_host_compute(config, loaded, vocab_size)
    return build_gpu_compute(
        config,
        loaded,
        device,
        vocab_size=vocab_size,
        make_host_kv=lambda pool: _allocate_swap_space(config, loaded, pool),
    )


def _build_host_compute(config: EngineConfig, loaded: LoadedModel, vocab_size: int) -> Compute:
    kv_cache = _allocate_pool(config, loaded)
    host_kv = _allocate_swap_space(config, loaded, kv_cache)
    attention = select_backend(
        config.attention.backend, kv_cache.layers, num_qo_heads=loaded.spec.num_qo_heads
    )
    decoder = build_decoder(
        loaded,
        attention,
        quantization=config.model.quantization,
        capacity=config.scheduler.max_num_batched_tokens,
    )
    runner = ModelRunner(decoder, kv_cache, attention, _build_sampler(config, vocab_size), host_kv)
    runner.warm_up()
    return Compute(runner, ImmediateLauncher(runner), kv_cache, host_kv)


def _set_num_threads(count: int) -> None:
    torch.set_num_threads(count)
    if kernels.is_available():
        kernels.set_num_threads(count)


def _publish_events(core: EngineCore, cache: CacheConfig) -> None:
    if cache.kv_events_endpoint is not None:
        publisher = KVEventPublisher(
            cache.kv_events_endpoint,
            replay_endpoint=cache.kv_events_replay_endpoint,
            topic=default_topic(core.info.name),
            block_size=cache.block_size,
        )
        _log.info("KV events: %s, replay %s", publisher.endpoint, publisher.replay_endpoint)
        core.publish_to(publisher)


def load_chat_template(config: ModelConfig, folder: Path, tokenizer: Tokenizer) -> ChatTemplate:
    """Return the chat template that the settings ask for: the model's own, or one that replaces it.

    Raises:
        ConfigError: it cannot be read.
    """
    name = config.tool_call_parser
    return ChatTemplate.from_folder(
        folder,
        tokenizer,
        override=_override(config),
        call_style=None if name == "auto" else find_parser(name),
    )


def _override(config: ModelConfig) -> str | None:
    if config.chat_template is None:
        return None
    try:
        return Path(config.chat_template).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"chat_template: cannot read {config.chat_template}: {error}") from None


def _allocate_pool(config: EngineConfig, loaded: LoadedModel) -> KVCache:
    cache, embedding = config.cache, loaded.model.embedding
    kv_dtype = choose_kv_dtype(cache.kv_cache_dtype, embedding.dtype, embedding.device)
    size = block_bytes(loaded.spec, cache.block_size, kv_dtype)
    num_blocks = choose_num_blocks(cache, block_bytes=size, free_bytes=free_memory_bytes())
    _log.info(
        "KV pool: %d blocks of %d tokens = %d tokens, %.2f GiB",
        num_blocks,
        cache.block_size,
        num_blocks * cache.block_size,
        num_blocks * size / 2**30,
    )
    return KVCache.allocate(
        loaded.spec,
        num_blocks,
        cache.block_size,
        kv_dtype,
        layout="columns" if has_kernels(config.attention.backend) else "rows",
    )


def _allocate_swap_space(config: EngineConfig, loaded: LoadedModel, pool: KVCache) -> HostKV | None:
    if config.scheduler.preemption_mode == "recompute":
        return None
    size = block_bytes(loaded.spec, pool.block_size, pool.layers[0].k.dtype)
    # The pool's pages are taken as they are written: until then they still count as free.
    pool_bytes = pool.num_blocks * size if pool.device.type == "cpu" else 0
    free = free_memory_bytes() - pool_bytes
    num_blocks = choose_swap_blocks(config.cache, block_bytes=size, free_bytes=free)
    _log.info("swap space: %d blocks, %.2f GiB", num_blocks, num_blocks * size / 2**30)
    return HostKV.allocate_beside(pool, num_blocks) if num_blocks else None


def _build_swap_space(config: EngineConfig, compute: Compute, max_len: int) -> SwapSpace:
    costs, host = None, compute.host_kv
    if host is not None and config.scheduler.preemption_mode == "auto":
        costs = measure_swap_costs(compute.runner, compute.kv_cache, host, max_len=max_len)
        _log.info(
            "measured: a copy to host memory %.1f GiB/s, prefill %.0f tokens/s",
            costs.copy_bytes_per_s / 2**30,
            costs.prefill_tokens_per_s,
        )
    return SwapSpace(
        num_blocks=host.num_blocks if host else 0,
        block_size=compute.kv_cache.block_size,
        costs=costs,
    )


def _build_scheduler(
    config: EngineConfig, loaded: LoadedModel, num_blocks: int, swap_space: SwapSpace
) -> Scheduler:
    cache_type = PrefixCache if config.cache.prefix_cache else UnsharedCache
    wanted = config.model.max_model_len or loaded.spec.max_position
    if wanted > loaded.spec.max_position:
        raise ConfigError(
            f"max_model_len is {wanted}, but the model holds {loaded.spec.max_position} tokens"
        )
    capacity = num_blocks * config.cache.block_size
    if capacity < wanted:
        _log.warning("the context is cut from %d to the pool's %d tokens", wanted, capacity)
    make_index = find_eviction_policy(
        config.cache.eviction_policy,
        num_blocks=num_blocks,
        block_size=config.cache.block_size,
        hold_share=config.cache.hold_share,
    )
    return Scheduler(
        cache_type(
            num_blocks=num_blocks, block_size=config.cache.block_size, make_index=make_index
        ),
        config.scheduler,
        max_model_len=min(wanted, capacity),
        swap_space=swap_space,
    )


def _name_of(model: str) -> str:
    path = Path(model)
    return path.stem if path.suffix == ".gguf" else path.name if path.exists() else model
