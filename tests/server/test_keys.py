"""Keys: from settings, files and environment, under names, and never shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from radixserve.config import KeyConfig
from radixserve.errors import ConfigError
from radixserve.server.keys import ApiKey, KeyRing, digest_of, load_keys

if TYPE_CHECKING:
    from pathlib import Path


def written(folder: Path, text: str) -> str:
    path = folder / "keys.txt"
    path.write_text(text)
    return str(path)


def owners(ring: KeyRing, *keys: str) -> list[str | None]:
    found = [ring.find(key) for key in keys]
    return [None if key is None else key.name for key in found]


def test_no_settings_make_no_keys() -> None:
    assert not load_keys(KeyConfig(), {})


def test_keys_come_from_settings_file_and_environment(tmp_path: Path) -> None:
    path = written(tmp_path, "# people\n\nalice: sk-a\n  sk-b  \nbob:sk:c\n")
    config = KeyConfig(api_keys=("sk-0",), api_key_file=path)
    ring = load_keys(config, {"RADIXSERVE_API_KEY": "sk-e"})
    assert owners(ring, "sk-0", "sk-a", "sk-b", "sk:c", "sk-e") == [
        "key-1",
        "alice",
        "key-3",
        "bob",
        "key-5",
    ]
    assert owners(ring, "", "sk", "sk-a ", "alice: sk-a", "bob:sk:c") == [None] * 5
    assert (ring.num_callers, ring.has_admins) == (5, False)


def test_admin_keys_are_apart(tmp_path: Path) -> None:
    config = KeyConfig(
        api_keys=("sk-0",), admin_api_keys=("root",), admin_api_key_file=written(tmp_path, "ops:r2")
    )
    ring = load_keys(config, {"RADIXSERVE_ADMIN_API_KEY": "r3"})
    assert [key and (key.name, key.is_admin) for key in map(ring.find, ("sk-0", "root", "r2"))] == [
        ("key-1", False),
        ("admin-1", True),
        ("ops", True),
    ]
    assert owners(ring, "r3") == ["admin-3"]
    assert (ring.num_callers, ring.has_admins) == (1, True)


@pytest.mark.parametrize(
    "text",
    ["alice:\n", ":sk-secret\n", "a b:sk-secret\n", "a\x1b:sk-secret\n", "x" * 65 + ":sk-secret"],
)
def test_a_line_that_is_no_key_is_refused_and_not_repeated(text: str, tmp_path: Path) -> None:
    path = written(tmp_path, f"sk-fine\n{text}")
    with pytest.raises(ConfigError, match=r"keys\.txt, line 2 must be KEY or NAME:KEY") as caught:
        load_keys(KeyConfig(api_key_file=path), {})
    assert "secret" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read as text"):
        load_keys(KeyConfig(api_key_file=str(tmp_path / "absent")), {})
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read as text"):
        load_keys(KeyConfig(api_key_file=str(tmp_path / "binary")), {})


@pytest.mark.parametrize(
    ("config", "what"),
    [
        (KeyConfig(api_keys=("same", "same")), "keys"),
        (KeyConfig(api_keys=("same",), admin_api_keys=("same",)), "keys"),
    ],
)
def test_one_key_has_one_owner(config: KeyConfig, what: str) -> None:
    with pytest.raises(ConfigError, match=f"two of the {what} are equal"):
        load_keys(config, {})


def test_one_name_has_one_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="two of the names are equal"):
        load_keys(KeyConfig(api_key_file=written(tmp_path, "a:1\na:2\n")), {})


def test_no_repr_shows_a_key_or_its_digest() -> None:
    key = ApiKey("alice", digest_of("sk-secret"))
    for shown in (repr(key), repr(KeyRing([key]))):
        assert "alice" in shown
        assert "secret" not in shown
        assert repr(digest_of("sk-secret")) not in shown


def test_every_key_is_compared_whichever_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = load_keys(KeyConfig(api_keys=("a", "b", "c")), {})
    compared: list[bytes] = []

    def compare(given: bytes, known: bytes) -> bool:
        compared.append(known)
        return given == known

    monkeypatch.setattr("radixserve.server.keys.hmac.compare_digest", compare)
    for given in ("a", "c", "neither"):
        compared.clear()
        ring.find(given)
        assert compared == [digest_of("a"), digest_of("b"), digest_of("c")]
