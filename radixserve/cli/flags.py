"""The flags that name settings: each stands for one dotted key of `ServerConfig`."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from radixserve.cli.flag import Flag, read_byte_count
from radixserve.cli.http_flags import HTTP_FLAGS, KEY_FLAGS, OBSERVE_FLAGS
from radixserve.config import ServerConfig
from radixserve.config_file import load_config, parse_override

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

Groups: TypeAlias = "Mapping[str, tuple[Flag, ...]]"
"""Title -> flags."""


MODEL_FLAGS = (
    Flag("--model", "engine.model.model", "a folder, a GGUF file or a model id", metavar="MODEL"),
    Flag(
        "--served-model-name",
        "engine.model.served_model_name",
        "the name clients use (default: the model's own)",
        metavar="NAME",
    ),
    Flag(
        "--dtype",
        "engine.model.dtype",
        "precision of weights and KV; auto is bfloat16 on the native kernels and on a GPU",
        choices=("auto", "float32", "bfloat16", "float16"),
    ),
    Flag(
        "--device",
        "engine.model.device",
        "where weights and KV are; auto takes a GPU that flashinfer runs on",
        choices=("auto", "cpu", "cuda"),
    ),
    Flag(
        "--quantization",
        "engine.model.quantization",
        "how the native kernels hold the weights; int8 decodes faster, with a loss",
        choices=("none", "int8"),
    ),
    Flag(
        "--max-model-len",
        "engine.model.max_model_len",
        "most tokens of prompt and output together (default: the model's own limit)",
        read=int,
    ),
    Flag(
        "--chat-template",
        "engine.model.chat_template",
        "a Jinja file that replaces the model's chat template",
        metavar="FILE",
    ),
    Flag(
        "--tool-call-parser",
        "engine.model.tool_call_parser",
        "how the model writes calls of tools; auto is as its chat template shows it",
        choices=("auto", "hermes", "llama3", "mistral", "mistral-args"),
    ),
)

CACHE_FLAGS = (
    Flag("--block-size", "engine.cache.block_size", "tokens a block", read=int),
    Flag(
        "--num-blocks",
        "engine.cache.num_blocks",
        "exact number of blocks (default: by memory)",
        read=int,
    ),
    Flag(
        "--kv-cache-dtype",
        "engine.cache.kv_cache_dtype",
        "how KV is held: in the model's dtype, or in about half of bfloat16 with a small loss, "
        "which is int8 on a CPU and fp8 on a GPU",
        choices=("auto", "int8", "fp8_e4m3", "fp8_e5m2"),
    ),
    Flag(
        "--kv-cache-memory-bytes",
        "engine.cache.kv_cache_memory_bytes",
        "memory of the KV cache, as in 2GiB (default: --memory-fraction)",
        read=read_byte_count,
        metavar="BYTES",
    ),
    Flag(
        "--memory-fraction",
        "engine.cache.memory_fraction",
        "share of the host's memory free after loading that the KV cache takes",
        read=float,
        metavar="F",
    ),
    Flag(
        "--gpu-memory-utilization",
        "engine.cache.gpu_memory_utilization",
        "on a GPU: share of its memory that weights, activations and KV cache take",
        read=float,
        metavar="F",
    ),
    Flag(
        "--swap-space",
        "engine.cache.swap_space_bytes",
        "host memory for the KV of preempted requests, as in 1GiB; 0 is off (default: 256MiB, or "
        "less where little is free)",
        read=read_byte_count,
        metavar="BYTES",
    ),
    Flag(
        "--eviction-policy",
        "engine.cache.eviction_policy",
        "which prefix goes first: lru, fifo, lfu, lfu-da, slru, 2q, gdsf, learned, adaptive",
        metavar="POLICY",
    ),
    Flag(
        "--hold-share",
        "engine.cache.hold_share",
        "most of the pool that hints of requests may hold back",
        read=float,
        metavar="F",
    ),
    Flag(
        "--no-prefix-cache",
        "engine.cache.prefix_cache",
        "compute every prompt in full, for comparisons",
        constant=False,
    ),
    Flag(
        "--kv-events-endpoint",
        "engine.cache.kv_events_endpoint",
        "where to publish what becomes of cached blocks, as in tcp://*:5557 (default: nowhere)",
        metavar="ENDPOINT",
    ),
    Flag(
        "--kv-events-replay-endpoint",
        "engine.cache.kv_events_replay_endpoint",
        "where subscribers may ask for events that they missed (default: nowhere)",
        metavar="ENDPOINT",
    ),
)

SCHEDULER_FLAGS = (
    Flag("--max-num-seqs", "engine.scheduler.max_num_seqs", "most sequences in a step", read=int),
    Flag(
        "--max-num-batched-tokens",
        "engine.scheduler.max_num_batched_tokens",
        "most tokens computed in a step",
        read=int,
    ),
    Flag(
        "--prefill-chunk-len",
        "engine.scheduler.prefill_chunk_len",
        "most tokens of one prompt in a step (default: --max-num-batched-tokens)",
        read=int,
    ),
    Flag(
        "--schedule-policy",
        "engine.scheduler.schedule_policy",
        "order of the queue: sweep, dfs, lpm, fair, priority, fcfs, or package.module:ClassName",
        metavar="POLICY",
    ),
    Flag(
        "--aged-every",
        "engine.scheduler.aged_every",
        "of this many admissions, one at least is the request that arrived first",
        read=int,
    ),
    Flag(
        "--max-queue-len",
        "engine.scheduler.max_queue_len",
        "most waiting requests; beyond it the answer is 429",
        read=int,
    ),
    Flag(
        "--max-queued-tokens",
        "engine.scheduler.max_queued_tokens",
        "most waiting tokens, likewise (default: no limit)",
        read=int,
    ),
    Flag(
        "--preemption-mode",
        "engine.scheduler.preemption_mode",
        "a request that gives way computes its KV again, or keeps it in host memory; auto is "
        "whichever is quicker here",
        choices=("auto", "recompute", "swap"),
    ),
)

COMPUTE_FLAGS = (
    Flag(
        "--attention-backend",
        "engine.attention.backend",
        "which kernels run: the native ones (cpu), FlashInfer's on an NVIDIA GPU (flashinfer), or "
        "plain torch (reference)",
        choices=("auto", "cpu", "flashinfer", "reference"),
    ),
    Flag(
        "--cascade-min-sharers",
        "engine.attention.cascade.min_sharers",
        "flashinfer reads a prefix once for so many requests that share it",
        read=int,
    ),
    Flag(
        "--cascade-min-shared-tokens",
        "engine.attention.cascade.min_shared_tokens",
        "and if it is so long",
        read=int,
    ),
    Flag(
        "--cascade-max-levels",
        "engine.attention.cascade.max_levels",
        "and at most so many inside one another, with what is each request's own; 1 is off",
        read=int,
    ),
    Flag("--num-threads", "engine.num_threads", "threads (default: all cores)", read=int),
    Flag(
        "--seed",
        "engine.seed",
        "for requests that bring no seed (default: another at each start)",
        read=int,
    ),
)

ENGINE_GROUPS = {
    "model": MODEL_FLAGS,
    "KV cache": CACHE_FLAGS,
    "scheduler": SCHEDULER_FLAGS,
    "compute": COMPUTE_FLAGS,
}
SERVER_GROUPS = {
    **ENGINE_GROUPS,
    "HTTP": HTTP_FLAGS,
    "keys": KEY_FLAGS,
    "logs, metrics, traces": OBSERVE_FLAGS,
}


def add_setting_flags(parser: argparse.ArgumentParser, groups: Groups) -> None:
    """Add `groups` of flags, --config and --set to `parser`."""
    files = parser.add_argument_group("settings (defaults, then the file, then flags)")
    files.add_argument("--config", type=Path, metavar="FILE", help="a TOML file with settings")
    files.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any setting by its dotted key, as in engine.cache.block_size=32; may be repeated",
    )
    for title, flags in groups.items():
        group = parser.add_argument_group(title)
        for flag in flags:
            _add_flag(group, flag)


def config_from_args(args: argparse.Namespace, groups: Groups) -> ServerConfig:
    """Return the settings that the parsed arguments ask for.

    Raises:
        ConfigError: a key is unknown or a value does not fit.
    """
    overrides = dict(parse_override(text) for text in args.set)
    for flag in itertools.chain.from_iterable(groups.values()):
        value = getattr(args, flag.dest)
        if value is not None:
            overrides[flag.key] = value
    return load_config(args.config, overrides)


def default_of(key: str) -> Any:
    """Return the default of a setting by its dotted key."""
    value: Any = ServerConfig()
    for name in key.split("."):
        value = getattr(value, name)
    return value


def _add_flag(group: argparse._ArgumentGroup, flag: Flag) -> None:
    if flag.constant is not None:
        group.add_argument(
            flag.name, dest=flag.dest, action="store_const", const=flag.constant, help=flag.meaning
        )
        return
    default = default_of(flag.key)
    text = flag.meaning if default in (None, ()) else f"{flag.meaning} (default: {default})"
    group.add_argument(
        flag.name,
        dest=flag.dest,
        action="append" if flag.repeats else "store",
        type=flag.read,
        choices=flag.choices,
        metavar=None if flag.choices else flag.metavar,
        help=text,
    )
