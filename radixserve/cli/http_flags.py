"""The flags of the HTTP server: where it listens, who may ask, what it tells its operator."""

from __future__ import annotations

from radixserve.cli.flag import Flag, read_byte_count

HTTP_FLAGS = (
    Flag("--host", "http.host", "address to listen on", metavar="HOST"),
    Flag("--port", "http.port", "port to listen on; 0 takes any free one", read=int),
    Flag(
        "--tls-cert",
        "http.tls_cert",
        "a PEM file with the certificate and its chain; with --tls-key the server speaks HTTPS",
        metavar="FILE",
    ),
    Flag("--tls-key", "http.tls_key", "a PEM file with the certificate's key", metavar="FILE"),
    Flag(
        "--cors-origin",
        "http.cors_origins",
        "an origin whose web pages may call this server, as in https://example.org; * is every "
        "one; may be repeated (default: none)",
        metavar="ORIGIN",
        repeats=True,
    ),
    Flag(
        "--max-body-bytes",
        "http.max_body_bytes",
        "largest request body, as in 16MiB",
        read=read_byte_count,
        metavar="BYTES",
    ),
    Flag(
        "--unknown-fields",
        "http.unknown_fields",
        "what happens to request fields that this server does not know",
        choices=("refuse", "ignore"),
    ),
    Flag(
        "--shutdown-grace-s",
        "http.shutdown_grace_s",
        "seconds that running requests get when the server is told to stop",
        read=float,
        metavar="S",
    ),
    Flag(
        "--data-dir",
        "http.data_dir",
        "a folder for uploaded files and batches (/v1/files, /v1/batches); it is made if need be "
        "(default: none, and those routes are off)",
        metavar="DIR",
    ),
    Flag(
        "--max-file-bytes",
        "http.max_file_bytes",
        "largest uploaded file, as in 200MiB",
        read=read_byte_count,
        metavar="BYTES",
    ),
    Flag(
        "--batch-concurrency",
        "http.batch_concurrency",
        "most requests of batches under way at once; they give way to all others",
        read=int,
    ),
)

KEY_FLAGS = (
    Flag(
        "--api-key",
        "http.keys.api_keys",
        "a key that clients must send; may be repeated; others see it in the list of processes: "
        "better a file, or RADIXSERVE_API_KEY in the environment (default: none)",
        metavar="KEY",
        repeats=True,
    ),
    Flag(
        "--api-key-file",
        "http.keys.api_key_file",
        "a file with a key a line, as KEY or NAME:KEY; logs and the policy fair use the names",
        metavar="FILE",
    ),
    Flag(
        "--admin-api-key",
        "http.keys.admin_api_keys",
        "a key that opens the admin routes too (inspect, pin and flush the cache); may be "
        "repeated; also RADIXSERVE_ADMIN_API_KEY (default: none)",
        metavar="KEY",
        repeats=True,
    ),
    Flag(
        "--admin-api-key-file",
        "http.keys.admin_api_key_file",
        "a file with an admin key a line, as KEY or NAME:KEY",
        metavar="FILE",
    ),
    Flag(
        "--share-cache-across-keys",
        "http.keys.share_cache",
        "let callers with different keys share cached prefixes; faster, but one caller can find "
        "out by timing what another has sent",
        constant=True,
    ),
)

OBSERVE_FLAGS = (
    Flag(
        "--access-log",
        "http.observe.access_log",
        "a line for each call: route, status, times, tokens, the key's name",
        choices=("json", "text", "off"),
    ),
    Flag(
        "--log-interval-s",
        "http.observe.log_interval_s",
        "seconds between two lines about the load, while there is any; 0 is off",
        read=float,
        metavar="S",
    ),
    Flag(
        "--log-step-times",
        "http.observe.log_step_times",
        "with each of those lines, where the time of the steps went: part by part, kernel by "
        "kernel, and the host's share",
        constant=True,
    ),
    Flag(
        "--metrics-aliases",
        "http.observe.metrics_aliases",
        "under which other names /metrics tells its numbers too, for dashboards that exist",
        choices=("vllm", "off"),
    ),
    Flag(
        "--otlp-endpoint",
        "http.observe.otlp_endpoint",
        "where traces go, as in http://localhost:4318/v1/traces (default: none; needs the extra "
        "'tracing')",
        metavar="URL",
    ),
)
