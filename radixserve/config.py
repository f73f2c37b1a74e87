"""Settings: frozen dataclasses that contain one another.

    ServerConfig
      engine: EngineConfig
        model: ModelConfig          which weights, in which precision
        cache: CacheConfig          the KV pool and the tree over it
        scheduler: SchedulerConfig  how many Reqs and tokens share a step
        attention: AttentionConfig  which kernels
      http: HttpConfig              address, limits
        keys: KeyConfig             who may ask
        observe: ObserveConfig      logs, metrics, traces

A class receives only its own part. `None` means "choose for me"; whoever owns the knowledge (the
loader for the dtype, `runtime.memory` for the pool) fills it in and says so in the log.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from radixserve.errors import ConfigError

DEFAULT_MODEL = "smollm2-135m-instruct"
"""The name of the model that `radixserve pull` fetches and that is served when none is named."""


def _require(condition: bool, key: str, allowed: str, value: object) -> None:
    if not condition:
        raise ConfigError(f"{key} must be {allowed}; got {value!r}")


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
        _require(
            self.tool_call_parser in ("auto", "hermes", "llama3", "mistral", "mistral-args"),
            "tool_call_parser",
            "auto, hermes, llama3, mistral or mistral-args",
            self.tool_call_parser,
        )
        _require(self.device in ("auto", "cpu", "cuda"), "device", "auto, cpu or cuda", self.device)
        _require(
            self.quantization in ("none", "int8"), "quantization", "none or int8", self.quantization
        )
        _require(bool(self.model), "model", "a folder, a GGUF file or a model id", self.model)
        _require(
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
        _require(1 <= self.block_size <= 1024, "block_size", "from 1 to 1024", self.block_size)
        fraction = self.memory_fraction
        _require(0 < fraction <= 0.95, "memory_fraction", "above 0 and at most 0.95", fraction)
        share = self.gpu_memory_utilization
        _require(0 < share <= 1, "gpu_memory_utilization", "above 0 and at most 1", share)
        dtypes = ("auto", "int8", "fp8_e4m3", "fp8_e5m2")
        _require(
            self.kv_cache_dtype in dtypes, "kv_cache_dtype", ", ".join(dtypes), self.kv_cache_dtype
        )
        _require(0 <= self.hold_share <= 1, "hold_share", "from 0 to 1", self.hold_share)
        _require(
            self.num_blocks is None or self.num_blocks >= 1, "num_blocks", ">= 1", self.num_blocks
        )
        _require(
            self.kv_cache_memory_bytes is None or self.kv_cache_memory_bytes > 0,
            "kv_cache_memory_bytes",
            "above 0",
            self.kv_cache_memory_bytes,
        )
        _require(
            self.swap_space_bytes is None or self.swap_space_bytes >= 0,
            "swap_space_bytes",
            "at least 0",
            self.swap_space_bytes,
        )
        _require(
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
        _require(self.max_num_seqs >= 1, "max_num_seqs", "at least 1", self.max_num_seqs)
        _require(
            self.max_num_batched_tokens >= self.max_num_seqs,
            "max_num_batched_tokens",
            f"at least max_num_seqs ({self.max_num_seqs})",
            self.max_num_batched_tokens,
        )
        _require(
            self.prefill_chunk_len is None or self.prefill_chunk_len >= 1,
            "prefill_chunk_len",
            "at least 1",
            self.prefill_chunk_len,
        )
        _require(self.aged_every >= 1, "aged_every", "at least 1", self.aged_every)
        _require(
            self.max_queued_tokens is None or self.max_queued_tokens >= 1,
            "max_queued_tokens",
            "at least 1",
            self.max_queued_tokens,
        )
        modes = ("auto", "recompute", "swap")
        _require(
            self.preemption_mode in modes,
            "preemption_mode",
            ", ".join(modes),
            self.preemption_mode,
        )
        _require(self.max_queue_len >= 1, "max_queue_len", "at least 1", self.max_queue_len)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionConfig:
    """Which kernels run: those of attention, and with them the model's."""

    backend: Literal["auto", "cpu", "flashinfer", "reference"] = "auto"
    """cpu: the native kernels. flashinfer: FlashInfer's, on a CUDA device. reference: plain torch.
    auto: the fastest that runs here."""

    def __post_init__(self) -> None:
        allowed = ("auto", "cpu", "flashinfer", "reference")
        _require(self.backend in allowed, "backend", " or ".join(allowed), self.backend)


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
        _require(
            self.scheduler.preemption_mode != "swap" or self.cache.swap_space_bytes != 0,
            "swap_space_bytes",
            "above 0 for preemption_mode swap",
            self.cache.swap_space_bytes,
        )
        _require(
            self.num_threads is None or self.num_threads >= 1,
            "num_threads",
            "at least 1",
            self.num_threads,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyConfig:
    """Who may ask. Without any key everybody who reaches the server may, for all but admin routes
    of a server that listens beyond this machine."""

    api_keys: tuple[str, ...] = field(default=(), repr=False)
    """Any of them opens every route but the admin ones."""
    api_key_file: str | None = None
    """A file with one more key a line, as KEY or as NAME:KEY."""
    admin_api_keys: tuple[str, ...] = field(default=(), repr=False)
    """These open the admin routes too."""
    admin_api_key_file: str | None = None
    """The same for admin keys."""
    share_cache: bool = False
    """With more than one API key, each has cached prefixes of its own; True shares them, which lets
    one caller find out by timing what another has sent."""

    def __post_init__(self) -> None:
        for name in ("api_keys", "admin_api_keys"):
            # The keys themselves are left out of the message: they are secrets.
            _require(all(getattr(self, name)), name, "not empty, each of them", "an empty key")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserveConfig:
    """What the HTTP server tells its operator."""

    access_log: Literal["json", "text", "off"] = "text"
    """A line for each call: route, status, times, tokens, the key's name. Probes that went well are
    left out."""
    log_interval_s: float = 10.0
    """Seconds between two lines about the load, while there is any; 0 is off."""
    log_step_times: bool = False
    """Whether each of those lines is followed by one about where the time of the steps went."""
    metrics_aliases: Literal["vllm", "off"] = "vllm"
    """Under which other names /metrics tells its numbers too, for dashboards that exist."""
    otlp_endpoint: str | None = None
    """Where traces go (OTLP over HTTP, as in http://localhost:4318/v1/traces); none when None."""

    def __post_init__(self) -> None:
        _require(self.log_interval_s >= 0, "log_interval_s", ">= 0", self.log_interval_s)
        for name, allowed in (
            ("access_log", ("json", "text", "off")),
            ("metrics_aliases", ("vllm", "off")),
        ):
            _require(
                getattr(self, name) in allowed, name, " or ".join(allowed), getattr(self, name)
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpConfig:
    """The HTTP server: where it listens, who may ask, and what it bounds."""

    host: str = "127.0.0.1"
    port: int = 8000
    """0 takes any free port; the banner says which."""
    tls_cert: str | None = None
    """A PEM file with the certificate and its chain; with `tls_key` the server speaks HTTPS."""
    tls_key: str | None = None
    cors_origins: tuple[str, ...] = ()
    """Origins whose web pages may call this server, as in https://example.org; * is every one."""
    keys: KeyConfig = field(default_factory=KeyConfig)
    observe: ObserveConfig = field(default_factory=ObserveConfig)
    max_body_bytes: int = 16 * 1024 * 1024
    unknown_fields: Literal["refuse", "ignore"] = "refuse"
    """What happens to a request field that this server does not know."""
    shutdown_grace_s: float = 30.0
    """How long running requests may go on after the signal to stop."""
    data_dir: str | None = None
    """A folder for uploaded files and batches; when None those routes are off, and nothing is ever
    written."""
    max_file_bytes: int = 200 * 1024 * 1024
    batch_concurrency: int = 32
    """Most requests of batches under way at once; they have a low priority."""

    def __post_init__(self) -> None:
        _require(0 <= self.port <= 65535, "port", "from 0 to 65535", self.port)
        _require(self.data_dir != "", "data_dir", "the path of a folder", self.data_dir)
        _require(
            (self.tls_cert is None) == (self.tls_key is None),
            "tls_cert",
            "given together with tls_key",
            self.tls_cert,
        )
        for origin in self.cors_origins:
            is_origin = origin == "*" or ("://" in origin and not origin.endswith("/"))
            _require(is_origin, "cors_origins", "* or like https://example.org", origin)
        for name, least in (
            ("max_body_bytes", 1024),
            ("shutdown_grace_s", 0),
            ("max_file_bytes", 1024),
            ("batch_concurrency", 1),
        ):
            _require(getattr(self, name) >= least, name, f">= {least}", getattr(self, name))
        _require(
            self.unknown_fields in ("refuse", "ignore"),
            "unknown_fields",
            "refuse or ignore",
            self.unknown_fields,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Everything `radixserve serve` needs."""

    engine: EngineConfig = field(default_factory=EngineConfig)
    http: HttpConfig = field(default_factory=HttpConfig)
