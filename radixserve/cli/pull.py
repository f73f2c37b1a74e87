"""`radixserve pull`: fetch a model, or find it where it already is, and say where."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from radixserve.cli.progress import RichProgress
from radixserve.config import DEFAULT_MODEL
from radixserve.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

EPILOG = """\
examples:
  radixserve pull                               the default model
  radixserve pull HuggingFaceTB/SmolLM2-360M-Instruct
  radixserve pull ./model.Q4_1.gguf             convert a GGUF file

Models lie under ~/.cache/radixserve, or under $RADIXSERVE_CACHE where that is set.
"""


def add_parser(commands: Any) -> None:
    """Add this command to the sub-parsers of the command line."""
    parser = commands.add_parser(
        "pull",
        help="fetch a model",
        description="Fetch a model and print the folder it lies in. Fetches nothing twice.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "model",
        nargs="?",
        default=DEFAULT_MODEL,
        metavar="MODEL",
        help=f"the default model's name, a hub id or a GGUF file (default: {DEFAULT_MODEL})",
    )
    parser.add_argument(
        "--force", action="store_true", help="fetch the default model anew, even if it is there"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Fetch the model and print its folder on stdout; progress goes to stderr.

    Raises:
        ModelLoadError: the model cannot be fetched.
    """
    print(_pull(args.model, force=args.force))
    return 0


def _pull(model: str, *, force: bool) -> Path:
    from radixserve.models.default_model import pull_default_model
    from radixserve.models.source import resolve_model

    if model == DEFAULT_MODEL:
        return pull_default_model(progress=RichProgress(), force=force)
    if force:
        raise ConfigError("--force works for the default model only")
    return resolve_model(model, progress=RichProgress())
