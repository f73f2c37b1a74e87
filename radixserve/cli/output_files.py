"""Files that a command will write when its work is done."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


def require_folders(*files: Path | None) -> None:
    """Complain before the work of minutes, not after it.

    Args:
        files: Those that were asked for; None for each that was not.
    Raises:
        ConfigError: one's folder is not there.
    """
    for file in files:
        if file is not None and not file.parent.is_dir():
            raise ConfigError(f"cannot write {file}: there is no folder {file.parent}")
