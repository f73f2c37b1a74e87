"""The folder that `http.data_dir` names, and where things lie in it.

store.sqlite     which files and batches there are
files/           their contents, by id
uploads/         what is being received; emptied at every start
batches/         results that grow, by the batch's id
lock             held by the server that writes here
"""

from __future__ import annotations

import fcntl
import os
import shutil
from typing import TYPE_CHECKING

from radixserve.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

_FOLDERS = ("files", "uploads", "batches")


class DataFolder:
    """The folder, made if need be and locked for this process.

    Args:
        root: May not exist yet.
    Raises:
        ConfigError: it cannot be written, or another server is using it.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.expanduser().absolute()
        try:
            for name in _FOLDERS:
                (self.root / name).mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"data_dir: cannot write {root}: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise ConfigError(f"data_dir: another server is using {root}") from None
        _empty(self.root / "uploads")

    @property
    def database(self) -> Path:
        """The database's file."""
        return self.root / "store.sqlite"

    def content(self, file_id: str) -> Path:
        """Return where a file's content is. `file_id`: one of ours."""
        return self.root / "files" / file_id

    def upload(self, file_id: str) -> Path:
        """Return where a file's content is while it is received."""
        return self.root / "uploads" / file_id

    def batch(self, batch_id: str) -> Path:
        """Return the folder of a batch's results."""
        return self.root / "batches" / batch_id

    def keep_only(self, file_ids: set[str]) -> None:
        """Delete the contents of all other files."""
        for path in (self.root / "files").iterdir():
            if path.name not in file_ids:
                path.unlink()

    def close(self) -> None:
        """Let another server use the folder."""
        os.close(self._lock)


def _empty(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir(mode=0o700)
