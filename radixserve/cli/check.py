"""`radixserve check`: is this machine able to serve, and if not, why?"""

from __future__ import annotations

import argparse
import asyncio
from typing import TYPE_CHECKING, Any

from radixserve.cli import self_test
from radixserve.cli.flags import ENGINE_GROUPS, add_setting_flags, config_from_args

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from radixserve.cli.self_test import Finding
    from radixserve.config import EngineConfig

EPILOG = """\
examples:
  radixserve check                    with the default model
  radixserve check --model ./my-model --dtype bfloat16

The last line runs one prompt twice: the second run must find the first one's prefix in the cache
and, in float32, give the same tokens. Exit code 0 when every line is ok, else 1.
"""


def add_parser(commands: Any) -> None:
    """Add this command to the sub-parsers of the command line."""
    parser = commands.add_parser(
        "check",
        help="test this machine and the model",
        description="Test this machine and the model, one line for each thing looked at.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_setting_flags(parser, ENGINE_GROUPS)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the findings as they come; 0 when all are ok, else 1."""
    config = config_from_args(args, ENGINE_GROUPS)
    return asyncio.run(_print_findings(config.engine))


async def _print_findings(config: EngineConfig) -> int:
    num_failed = 0
    async for finding in _findings(config):
        num_failed += not finding.is_ok
        print(finding, flush=True)
    print("all ok" if num_failed == 0 else f"{num_failed} failed", flush=True)
    return 1 if num_failed else 0


async def _findings(config: EngineConfig) -> AsyncIterator[Finding]:
    for look in (self_test.python, self_test.torch, self_test.machine):
        yield look()
    yield self_test.native_kernels()
    yield self_test.precision(config)
    found = self_test.model_files(config.model.model)
    yield found
    if found.is_ok:
        async for finding in self_test.engine(config):
            yield finding
