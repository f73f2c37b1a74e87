"""API keys: where they come from, whose they are, and which one a caller has shown."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from radixserve.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from radixserve.config import KeyConfig

KEY_VARIABLE = "RADIXSERVE_API_KEY"
ADMIN_KEY_VARIABLE = "RADIXSERVE_ADMIN_API_KEY"

_NAME = re.compile(r"[A-Za-z0-9._\-]{1,64}")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One key, by its owner's name. The key itself is forgotten at once: its digest will do.

    A name is made of the key's place in the settings, not of its digest, which would let who reads
    a log try out weak keys.
    """

    name: str
    digest: bytes = field(repr=False)
    is_admin: bool = False


class KeyRing:
    """All the keys of a server.

    Args:
        keys: With names and keys that are all different.
    Raises:
        ConfigError: two keys have one name, or two names one key.
    """

    def __init__(self, keys: Sequence[ApiKey]) -> None:
        self._keys = tuple(keys)
        for kind, values in (
            ("names", [key.name for key in keys]),
            ("keys", [key.digest for key in keys]),
        ):
            if len(set(values)) != len(values):
                raise ConfigError(f"api_keys: two of the {kind} are equal")

    def __repr__(self) -> str:
        return f"<KeyRing {[key.name for key in self._keys]}>"

    def __bool__(self) -> bool:
        return bool(self._keys)

    @property
    def has_admins(self) -> bool:
        """Whether any key opens the admin routes."""
        return any(key.is_admin for key in self._keys)

    @property
    def num_callers(self) -> int:
        """Keys of ordinary callers."""
        return sum(not key.is_admin for key in self._keys)

    def find(self, given: str) -> ApiKey | None:
        """Return the key that a caller has shown.

        Takes the same time whether none fits, or the first, or the last.
        """
        digest = digest_of(given)
        found = None
        for key in self._keys:
            if hmac.compare_digest(digest, key.digest):
                found = key
        return found


def load_keys(config: KeyConfig, environment: Mapping[str, str] = os.environ) -> KeyRing:
    """Return the keys of settings, files and environment, in this order.

    Raises:
        ConfigError: a file cannot be read or has a line that is no key; two keys are equal.
    """
    return KeyRing(
        [
            *_keys(
                config.api_keys,
                config.api_key_file,
                environment.get(KEY_VARIABLE, ""),
                is_admin=False,
            ),
            *_keys(
                config.admin_api_keys,
                config.admin_api_key_file,
                environment.get(ADMIN_KEY_VARIABLE, ""),
                is_admin=True,
            ),
        ]
    )


def digest_of(key: str) -> bytes:
    """Return a digest, so that a compare takes the same time whatever the lengths."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _keys(
    plain: Iterable[str], file: str | None, from_environment: str, *, is_admin: bool
) -> list[ApiKey]:
    pairs = [("", key) for key in plain]
    if file is not None:
        pairs += _read_file(Path(file))
    if from_environment:
        pairs.append(("", from_environment))
    prefix = "admin" if is_admin else "key"
    return [
        ApiKey(name or f"{prefix}-{place}", digest_of(key), is_admin)
        for place, (name, key) in enumerate(pairs, start=1)
    ]


def _read_file(path: Path) -> list[tuple[str, str]]:
    """Return (name or "", key) of each line that is neither empty nor a comment."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        raise ConfigError(f"the key file {path} cannot be read as text") from None
    numbered = [(number, line.strip()) for number, line in enumerate(lines, start=1)]
    return [
        _parse_line(line, f"{path}, line {number}")
        for number, line in numbered
        if line and not line.startswith("#")
    ]


def _parse_line(line: str, where: str) -> tuple[str, str]:
    name, colon, key = line.partition(":")
    if not colon:
        return "", line
    if not _NAME.fullmatch(name) or not key.strip():
        # The line itself is left out of the message: it may hold a key.
        raise ConfigError(
            f"{where} must be KEY or NAME:KEY; a name has up to 64 letters, digits, '.', '_', '-'"
        )
    return name, key.strip()
