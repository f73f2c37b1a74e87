"""Settings of the HTTP server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from radixserve.config.rule import require


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
            require(all(getattr(self, name)), name, "not empty, each of them", "an empty key")


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
        require(self.log_interval_s >= 0, "log_interval_s", ">= 0", self.log_interval_s)
        for name, allowed in (
            ("access_log", ("json", "text", "off")),
            ("metrics_aliases", ("vllm", "off")),
        ):
            require(getattr(self, name) in allowed, name, " or ".join(allowed), getattr(self, name))


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
        require(0 <= self.port <= 65535, "port", "from 0 to 65535", self.port)
        require(self.data_dir != "", "data_dir", "the path of a folder", self.data_dir)
        require(
            (self.tls_cert is None) == (self.tls_key is None),
            "tls_cert",
            "given together with tls_key",
            self.tls_cert,
        )
        for origin in self.cors_origins:
            is_origin = origin == "*" or ("://" in origin and not origin.endswith("/"))
            require(is_origin, "cors_origins", "* or like https://example.org", origin)
        for name, least in (
            ("max_body_bytes", 1024),
            ("shutdown_grace_s", 0),
            ("max_file_bytes", 1024),
            ("batch_concurrency", 1),
        ):
            require(getattr(self, name) >= least, name, f">= {least}", getattr(self, name))
        require(
            self.unknown_fields in ("refuse", "ignore"),
            "unknown_fields",
            "refuse or ignore",
            self.unknown_fields,
        )
