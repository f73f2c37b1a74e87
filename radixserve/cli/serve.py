"""`radixserve serve`: load the model, then answer HTTP until told to stop."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from typing import TYPE_CHECKING, Any

from radixserve.cli.banner import Banner
from radixserve.cli.flags import SERVER_GROUPS, add_setting_flags, config_from_args
from radixserve.cli.progress import RichProgress

if TYPE_CHECKING:
    import socket

    from radixserve.config import ServerConfig
    from radixserve.engine.async_engine import AsyncEngine

LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

EPILOG = """\
examples:
  radixserve serve
  radixserve serve --model ./my-model --port 9000 --api-key s3cret
  radixserve serve --kv-cache-memory-bytes 2GiB --max-num-seqs 16
  radixserve serve --config configs/cpu-default.toml --set engine.cache.block_size=32
"""


def add_parser(commands: Any) -> None:
    """Add this command to the sub-parsers of the command line."""
    parser = commands.add_parser(
        "serve",
        help="serve a model over an OpenAI-compatible HTTP API",
        description="Serve a model over an OpenAI-compatible HTTP API.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_setting_flags(parser, SERVER_GROUPS)
    parser.add_argument(
        "--log-level", choices=LOG_LEVELS, default="info", help="what is logged (default: info)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM.

    Raises:
        ConfigError: a setting, the model or the address cannot be used.
    """
    config = config_from_args(args, SERVER_GROUPS)
    configure_logging(args.log_level)
    from radixserve.engine.async_engine import AsyncEngine
    from radixserve.server.access_log import write_bare_lines
    from radixserve.server.run import bind_socket, check_settings

    if config.http.observe.access_log == "json":
        write_bare_lines(sys.stderr)
    check_settings(config.http)

    # Reserved first, so that a taken port is reported before seconds of loading; nobody can
    # connect until the server listens on it.
    with bind_socket(config.http.host, config.http.port) as listener:
        engine = AsyncEngine.from_config(config.engine, progress=RichProgress())
        asyncio.run(_serve(engine, config, listener))
    return 0


def configure_logging(level: str) -> None:
    """Send log records from `level` on to stderr."""
    logging.basicConfig(level=level.upper(), format=LOG_FORMAT, stream=sys.stderr)


async def _serve(engine: AsyncEngine, config: ServerConfig, listener: socket.socket) -> None:
    from radixserve.server.keys import load_keys
    from radixserve.server.run import serve

    def print_banner(url: str) -> None:
        banner = Banner(
            url=url,
            model=engine.info.name,
            dtype=engine.info.dtype,
            max_model_len=engine.info.max_model_len,
            kv_capacity_tokens=engine.info.kv_capacity_tokens,
            num_blocks=engine.stats().num_blocks,
            needs_key=bool(load_keys(config.http.keys)),
        )
        print(banner, flush=True)

    await serve(engine, config.http, on_ready=print_banner, listener=listener)
