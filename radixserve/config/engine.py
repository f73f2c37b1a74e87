"""Settings of an engine: the model, its KV, the scheduler, the kernels."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from radixserve.config.rule import require

DEFAULT_MODEL = "smollm2-135m-instruct"
"""The name of the model that `radixserve pull` fetches and that is served when none is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Which weights are served and how they are held."""

    model: str = DEFAULT_MODEL
    """A folder, a GGUF file, a hub id, or the default model's name."""
    served_model_name: str | None = None
    """The name clients use; the model's own name when None."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where weights and KV are. auto: a GPU, if one is here and flashinfer runs on it."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Of weights and KV. auto: bfloat16 on the native kernels, on a GPU, or where this machine
    multiplies it natively, else float32. float16 is for a GPU, which does without float32."""
    quantization: Literal["none", "int8"] = "none"
    """How the native kernels hold the weights: int8 is half of bfloat16, with a loss."""
    max_model_len: int | None = None
    """Most tokens of prompt and output together; the model's own limit when None."""
    chat_template: str | None = None
    """A file with a Jinja chat template that replaces the model's own."""
    tool_call_parser: Literal["auto", "hermes", "llama3", "mistral", "mistral-args"] = "auto"
    """How the model writes calls of tools; auto: as its chat template shows it."""

    def __post_init__(self) -> None:
        require(
            self.tool_call_parser in ("auto", "hermes", "llama3", "mistral", "mistral-args"),
            "tool_call_parser",
            "auto, hermes, llama3, mistral or mistral-args",
            self.tool_call_parser,
        )
        require(self.device in ("auto", "cpu", "cuda"), "device", "auto, cpu or cuda", self.device)
        require(
            self.quantization in ("none", "int8"), "quantization", "none or int8", self.quantization
        )
        require(bool(self.model), "model", "a folder, a GGUF file or a model id", self.model)
        require(
            self.max_model_len is None or self.max_model_len >= 2,
            "max_model_len",
            "at least 2",
            self.max_model_len,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """The KV pool and the radix tree over it."""

    block_size: int = 16
    """Tokens a block. Reuse is exact to the token at any size."""
    kv_cache_dtype: Literal["auto", "int8", "fp8_e4m3", "fp8_e5m2"] = "auto"
    """How KV is held. auto: in the model's dtype. int8, on a CPU: a byte a number and a scale for
    each token's head, about half of bfloat16, with a small loss. fp8, on a GPU: half, with a
    loss."""
    kv_cache_memory_bytes: int | None = None
    """Bytes for the pool; overrides `memory_fraction`."""
    memory_fraction: float = 0.25
    """Share of the host's memory that is free after the weights are loaded."""
    gpu_memory_utilization: float = 0.9
    """On a GPU instead: share of all its memory that weights, activations and pool take."""
    num_blocks: int | None = None
    """Exact number of blocks; overrides both."""
    swap_space_bytes: int | None = None
    """Host memory for the KV of preempted requests; 0 is off. When None, 256 MiB or, if that is
    less, an eighth of what is free beside the pool."""
    eviction_policy: str = "lru"
    """Which cached prefix goes first when blocks run out: lru, fifo, lfu, lfu-da, slru, 2q, gdsf,
    learned, adaptive."""
    hold_share: float = 0.5
    """Most of the pool that hints of requests may hold back from eviction."""
    prefix_cache: bool = True
    """False computes every prompt in full: for comparisons."""
    kv_events_endpoint: str | None = None
    """Where to publish what becomes of cached blocks (ZMQ), as in tcp://*:5557; nowhere when
    None."""
    kv_events_replay_endpoint: str | None = None
    """Where subscribers that missed something may ask for it again; nowhere when None."""

    def __post_init__(self) -> None:
        require(1 <= self.block_size <= 1024, "block_size", "from 1 to 1024", self.block_size)
        fraction = self.memory_fraction
        require(0 < fraction <= 0.95, "memory_fraction", "above 0 and at most 0.95", fraction)
        share = self.gpu_memory_utilization
        require(0 < share <= 1, "gpu_memory_utilization", "above 0 and at most 1", share)
        dtypes = ("auto", "int8", "fp8_e4m3", "fp8_e5m2")
        require(
            self.kv_cache_dtype in dtypes, "kv_cache_dtype", ", ".join(dtypes), self.kv_cache_dtype
        )
        require(0 <= self.hold_share <= 1, "hold_share", "from 0 to 1", self.hold_share)
        require(
            self.num_blocks is None or self.num_blocks >= 1, "num_blocks", ">= 1", self.num_blocks
        )
        require(
            self.kv_cache_memory_bytes is None or self.kv_cache_memory_bytes > 0,
            "kv_cache_memory_bytes",
            "above 0",
            self.kv_cache_memory_bytes,
        )
        require(
            self.swap_space_bytes is None or self.swap_space_bytes >= 0,
            "swap_space_bytes",
            "at least 0",
            self.swap_space_bytes,
        )
        require(
            self.kv_events_replay_endpoint is None or self.kv_events_endpoint is not None,
            "kv_events_replay_endpoint",
            "given together with kv_events_endpoint",
            self.kv_events_replay_endpoint,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """How many Reqs and tokens share a step, and in which order Reqs are admitted."""

    max_num_seqs: int = 64
    """Most Reqs running at once."""
    max_num_batched_tokens: int = 512
    """Most tokens computed in one step."""
    prefill_chunk_len: int | None = None
    """Most prompt tokens of one Req in one step; `max_num_batched_tokens` when None."""
    schedule_policy: str = "sweep"
    """sweep: depth first over the waiting prompts, with a bound on every wait; dfs, lpm, fair,
    priority, fcfs: see core/policies; or package.module:ClassName for one of your own."""
    aged_every: int = 128
    """Of this many admissions, at least one is the Req that arrived first (sweep, fair)."""
    max_queue_len: int = 1024
    """Most Reqs waiting; beyond it a request is refused with 429."""
    preemption_mode: Literal["auto", "recompute", "swap"] = "auto"
    """What becomes of the KV of a Req that gives way: computed again, kept in host memory, or
    (auto) whichever takes less time by this machine's measured speeds."""
    max_queued_tokens: int | None = None
    """Most tokens waiting, likewise."""

    def __post_init__(self) -> None:
        require(self.max_num_seqs >= 1, "max_num_seqs", "at least 1", self.max_num_seqs)
        require(
            self.max_num_batched_tokens >= self.max_num_seqs,
            "max_num_batched_tokens",
            f"at least max_num_seqs ({self.max_num_seqs})",
            self.max_num_batched_tokens,
        )
        require(
            self.prefill_chunk_len is None or self.prefill_chunk_len >= 1,
            "prefill_chunk_len",
            "at least 1",
            self.prefill_chunk_len,
        )
        require(self.aged_every >= 1, "aged_every", "at least 1", self.aged_every)
        require(
            self.max_queued_tokens is None or self.max_queued_tokens >= 1,
            "max_queued_tokens",
            "at least 1",
            self.max_queued_tokens,
        )
        modes = ("auto", "recompute", "swap")
        require(
            self.preemption_mode in modes,
            "preemption_mode",
            ", ".join(modes),
            self.preemption_mode,
        )
        require(self.max_queue_len >= 1, "max_queue_len", "at least 1", self.max_queue_len)


@dataclass(frozen=True, slots=True, kw_only=True)
class CascadeConfig:
    """When FlashInfer reads blocks that several requests share once for all of them: one more level
    is one more attention and one more merge in every layer. The native kernels decide by
    themselves."""

    min_sharers: int = 8
    """Fewest requests that share a level's blocks."""
    min_shared_tokens: int = 512
    """Fewest tokens that a level adds to what its sharers share already."""
    max_levels: int = 3
    """Most levels, the private one among them; 1 is off."""

    def __post_init__(self) -> None:
        for name, least in (("min_sharers", 2), ("min_shared_tokens", 1), ("max_levels", 1)):
            require(getattr(self, name) >= least, name, f"at least {least}", getattr(self, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionConfig:
    """Which kernels run: those of attention, and with them the model's."""

    backend: Literal["auto", "cpu", "flashinfer", "reference"] = "auto"
    """cpu: the native kernels. flashinfer: FlashInfer's, on a CUDA device. reference: plain torch.
    auto: the fastest that runs here."""
    cascade: CascadeConfig = field(default_factory=CascadeConfig)

    def __post_init__(self) -> None:
        allowed = ("auto", "cpu", "flashinfer", "reference")
        require(self.backend in allowed, "backend", " or ".join(allowed), self.backend)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Everything an engine needs, and nothing of HTTP."""

    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    attention: AttentionConfig = field(default_factory=AttentionConfig)
    num_threads: int | None = None
    """Threads of the forward pass; all cores when None."""
    seed: int | None = None
    """Seeds the requests that bring no seed of their own; from the system's entropy when None."""

    def __post_init__(self) -> None:
        require(
            self.scheduler.preemption_mode != "swap" or self.cache.swap_space_bytes != 0,
            "swap_space_bytes",
            "above 0 for preemption_mode swap",
            self.cache.swap_space_bytes,
        )
        require(
            self.num_threads is None or self.num_threads >= 1,
            "num_threads",
            "at least 1",
            self.num_threads,
        )
