"""`radixserve`: reads the arguments, runs the command, turns what goes wrong into one line."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

import radixserve
from radixserve.cli import batch, bench, chat, check, pull, replay, serve
from radixserve.errors import BackendUnavailableError, ConfigError, RadixServeError

if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_FAILED = 1
EXIT_WRONG_SETTING = 2
EXIT_INTERRUPTED = 130

EPILOG = """\
examples:
  radixserve pull                     fetch the default model (about 100 MB, once)
  radixserve serve                    serve it at http://127.0.0.1:8000/v1
  radixserve chat                     talk to the server that is running
  radixserve check                    find out why something does not work
  radixserve batch run questions.jsonl -o answers.jsonl
  radixserve replay trace.jsonl --blocks 1% 10%   how large must the cache be?
  radixserve bench serve --dataset-name w1        how fast is the server that is running?

'radixserve COMMAND --help' explains each one.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code: 0, 1 failed, 2 wrong setting, 130 interrupted."""
    try:
        args = make_parser().parse_args(argv)
        exit_code: int = args.run(args)
    except (ConfigError, BackendUnavailableError) as error:
        return _report(error, EXIT_WRONG_SETTING)
    except RadixServeError as error:
        return _report(error, EXIT_FAILED)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return exit_code


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="radixserve",
        description="An LLM server whose KV cache is a radix tree.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {radixserve.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (serve, batch, chat, pull, check, replay, bench):
        command.add_parser(commands)
    return parser


def _report(error: RadixServeError, exit_code: int) -> int:
    print("radixserve:", " ".join(str(error).split()), file=sys.stderr)
    return exit_code
