"""The things that `radixserve check` looks at, each giving a `Finding`."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import os
import platform
import re
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from radixserve.cli.byte_count import format_byte_count
from radixserve.cli.progress import RichProgress
from radixserve.errors import ConfigError, RadixServeError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from radixserve.config import EngineConfig
    from radixserve.engine.async_engine import AsyncEngine

LEAST_PYTHON = (3, 11)
LEAST_TORCH, FIRST_UNTESTED_TORCH = (2, 11), (2, 14)
LEAST_FREE_BYTES = 1 << 30

PROMPT = (
    "A radix tree stores strings by their shared prefixes, so that what two strings have in common "
    "is kept once. A server can use one to remember what it has computed, because"
)
NUM_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at; `str(finding)` is its line in the table."""

    subject: str
    is_ok: bool
    detail: str

    def __str__(self) -> str:
        return f"{'ok' if self.is_ok else 'FAILED':<7} {self.subject:<11} {self.detail}"


@dataclass(frozen=True, slots=True)
class Generation:
    """What one run of the prompt gave."""

    token_ids: tuple[int, ...]
    prompt_len: int
    cached_len: int
    seconds: float


def python() -> Finding:
    """Look at the interpreter."""
    version = platform.python_version()
    return Finding("python", sys.version_info >= LEAST_PYTHON, f"{version} at {sys.executable}")


def torch() -> Finding:
    """Look at torch: is it there, and of a version that radixserve is tested with?"""
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return Finding("torch", False, "not installed; run scripts/serve, or pip install torch")
    release = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    in_range = LEAST_TORCH <= release < FIRST_UNTESTED_TORCH
    wanted = "" if in_range else "; 2.11 to 2.13 are tested"
    return Finding("torch", in_range, f"{version}{wanted}")


def machine() -> Finding:
    """Look at cores and memory."""
    from radixserve.runtime.memory import free_memory_bytes

    free = free_memory_bytes()
    cores = len(os.sched_getaffinity(0))
    detail = f"{platform.machine()}, {cores} cores, {format_byte_count(free)} free"
    return Finding("machine", free >= LEAST_FREE_BYTES, detail)


def precision(config: EngineConfig) -> Finding:
    """Look at where the model goes and which precision is chosen there, and why."""
    from radixserve.attention.select import has_kernels
    from radixserve.engine.precision import choose_precision

    try:
        device, dtype, _ = choose_precision(config)
    except RadixServeError as error:
        return _failure("dtype", error)
    chosen = str(dtype).removeprefix("torch.")
    if device.type == "cuda":
        return Finding("dtype", True, f"{chosen}, on the GPU")
    if config.model.dtype != "auto":
        return Finding("dtype", True, f"{chosen}, as asked for")
    if has_kernels(config.attention.backend):
        return Finding("dtype", True, f"{chosen}, which the native kernels read at half the cost")
    native = "multiplies" if chosen == "bfloat16" else "does not multiply"
    return Finding("dtype", True, f"{chosen}: this CPU {native} bfloat16 natively")


def native_kernels() -> Finding:
    """Look for the compiled kernels; without them everything runs, slowly."""
    from radixserve import kernels

    if kernels.is_available():
        return Finding("kernels", True, f"{kernels.variant()}, {kernels.num_threads()} threads")
    return Finding("kernels", True, f"plain torch: {kernels.why_not()}")


def model_files(model: str) -> Finding:
    """Look for the model, fetching it where that is needed, and check its files' sums."""
    from radixserve.models.source import resolve_model

    try:
        folder = resolve_model(model, progress=RichProgress())
        return Finding("model", True, f"{folder} ({_checksum_note(folder)})")
    except RadixServeError as error:
        return _failure("model", error)


async def engine(config: EngineConfig) -> AsyncIterator[Finding]:
    """Load the model and run one prompt twice."""
    from radixserve.engine.async_engine import AsyncEngine

    started_at = time.perf_counter()
    try:
        loaded = await asyncio.to_thread(AsyncEngine.from_config, config)
        await loaded.start()
    except RadixServeError as error:
        yield _failure("engine", error)
        return
    seconds = time.perf_counter() - started_at
    info = loaded.info
    yield Finding(
        "engine",
        True,
        f"{info.name} in {info.dtype}, loaded in {seconds:.1f} s, "
        f"{info.kv_capacity_tokens:,} tokens of KV",
    )
    try:
        yield await _prefix_reuse(loaded, expects_reuse=config.cache.prefix_cache)
    except RadixServeError as error:
        yield _failure("generation", error)
    finally:
        await loaded.stop()


async def _prefix_reuse(loaded: AsyncEngine, *, expects_reuse: bool) -> Finding:
    cold = await _generate(loaded)
    warm = await _generate(loaded)
    is_same = warm.token_ids == cold.token_ids
    # A cached prompt is computed in other shapes than a whole one. float32 is precise enough for
    # that not to show in the tokens; bfloat16 is not.
    must_be_same = loaded.info.dtype == "float32"
    reuses = warm.cached_len == (warm.prompt_len - 1 if expects_reuse else 0)
    detail = (
        f"{len(cold.token_ids)} tokens in {cold.seconds:.2f} s, again in {warm.seconds:.2f} s with "
        f"{warm.cached_len} of {warm.prompt_len} prompt tokens from the cache and "
        f"{'the same' if is_same else 'other'} tokens"
    )
    return Finding("generation", reuses and (is_same or not must_be_same), detail)


async def _generate(loaded: AsyncEngine) -> Generation:
    from radixserve.engine.request import GenerateRequest
    from radixserve.types import SamplingParams

    request = GenerateRequest(
        prompt_ids=loaded.tokenizer.encode(PROMPT),
        params=SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS),
        ignore_eos=True,
    )
    started_at = time.perf_counter()
    token_ids: list[int] = []
    prompt_len = cached_len = 0
    async with loaded.submit(request) as stream:
        async for delta in stream:
            token_ids += delta.token_ids
            prompt_len, cached_len = delta.usage.prompt_tokens, delta.usage.cached_tokens
    seconds = time.perf_counter() - started_at
    return Generation(tuple(token_ids), prompt_len, cached_len, seconds)


def _checksum_note(folder: Path) -> str:
    """Compare the folder's files with its manifest, where it has one.

    Raises:
        ConfigError: a file is missing or not the one that was written.
    """
    from radixserve.models.cache_folder import MANIFEST_NAME, file_sha256

    path = folder / MANIFEST_NAME
    if not path.exists():
        return "not made by radixserve: no checksums"
    files = json.loads(path.read_text(encoding="utf-8"))["files"]
    for name, entry in files.items():
        if not (folder / name).exists() or file_sha256(folder / name) != entry["sha256"]:
            raise ConfigError(f"{folder / name} is damaged; run 'radixserve pull --force'")
    return f"checksums of {len(files)} files ok"


def _failure(subject: str, error: RadixServeError) -> Finding:
    return Finding(subject, False, " ".join(str(error).split()))
