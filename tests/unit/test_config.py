"""Settings: bounds, the file, the overrides, and what is said about a wrong one."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from radixserve.config import (
    CacheConfig,
    CascadeConfig,
    EngineConfig,
    HttpConfig,
    KeyConfig,
    ModelConfig,
    SchedulerConfig,
    ServerConfig,
)
from radixserve.config_file import config_keys, load_config, parse_override
from radixserve.errors import ConfigError

REPO = Path(__file__).parents[2]


def written(folder: Path, text: str) -> Path:
    """A settings file with this text."""
    path = folder / "settings.toml"
    path.write_text(text)
    return path


def test_without_file_and_overrides_the_defaults_are_returned() -> None:
    assert load_config() == ServerConfig()


def test_tables_of_the_file_mirror_the_dataclasses(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """
        [engine]
        seed = 7
        [engine.model]
        dtype = "float32"
        max_model_len = 2048
        [engine.cache]
        prefix_cache = false
        memory_fraction = 0.5
        [engine.scheduler]
        aged_every = 3
        [http]
        port = 9000
        shutdown_grace_s = 3
        """,
    )
    config = load_config(path)
    assert config == ServerConfig(
        engine=EngineConfig(
            seed=7,
            model=ModelConfig(dtype="float32", max_model_len=2048),
            cache=CacheConfig(prefix_cache=False, memory_fraction=0.5),
            scheduler=SchedulerConfig(aged_every=3),
        ),
        http=HttpConfig(port=9000, shutdown_grace_s=3.0),
    )
    assert isinstance(config.http.shutdown_grace_s, float)


def test_an_override_wins_over_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, "[engine.cache]\nblock_size = 32\nmemory_fraction = 0.5\n")
    cache = load_config(path, {"engine.cache.block_size": 8}).engine.cache
    assert (cache.block_size, cache.memory_fraction) == (8, 0.5)


def test_an_override_of_none_means_choose_for_me(tmp_path: Path) -> None:
    path = written(tmp_path, "[engine.cache]\nnum_blocks = 32\n")
    assert load_config(path, {"engine.cache.num_blocks": None}).engine.cache.num_blocks is None


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (
            "engine.cache.blok_size",
            8,
            "engine.cache.blok_size is not a setting; allowed here: block",
        ),
        ("cache", {}, "cache is not a setting; allowed here: engine, http"),
        (
            "engine.cache.block_size",
            "8",
            "engine.cache.block_size must be a whole number, not text",
        ),
        ("engine.cache.block_size", True, "must be a whole number, not true or false"),
        ("engine.cache.block_size", 8.5, "must be a whole number, not a number"),
        ("engine.cache.block_size", 0, "engine.cache.block_size must be from 1 to 1024; got 0"),
        (
            "engine.cache.prefix_cache",
            1,
            "engine.cache.prefix_cache must be true or false, not a wh",
        ),
        ("engine.cache", 8, "engine.cache must be a table, not a whole number"),
        (
            "engine.model.dtype",
            "fp8",
            "engine.model.dtype must be auto or float32 or bfloat16 or float16; got",
        ),
        ("engine.model.dtype", ["auto"], "engine.model.dtype must be auto or float32"),
        (
            "http.shutdown_grace_s",
            "1",
            "http.shutdown_grace_s must be a number, not text",
        ),
        ("engine.num_threads", 0, "engine.num_threads must be at least 1; got 0"),
        ("engine.seed.deep", 1, "engine.seed must be a whole number, not a table"),
        ("http.port", 70000, "http.port must be from 0 to 65535; got 70000"),
        ("http.keys.api_keys", [""], "http.keys.api_keys must be not empty, each of them"),
        ("http.keys.api_keys", "k", "http.keys.api_keys must be a list, not text in quotes"),
        (
            "http.keys.api_keys",
            [1],
            "http.keys.api_keys must be text in quotes, not a whole number",
        ),
        ("http.cors_origins", ["example.org"], "must be * or like https://example.org; got"),
        ("http.tls_cert", "a.pem", "http.tls_cert must be given together with tls_key"),
        ("http.max_body_bytes", 0, "http.max_body_bytes must be >= 1024; got 0"),
        ("http.observe.access_log", "xml", "http.observe.access_log must be json or text or off"),
        ("http.observe.log_interval_s", -1, "http.observe.log_interval_s must be >= 0; got -1"),
    ],
)
def test_a_wrong_override_names_its_key_and_what_is_allowed(
    key: str, value: object, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(overrides={key: value})
    assert message in str(caught.value)


def test_a_wrong_key_in_a_file_names_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, "[http]\nprot = 1\n")
    with pytest.raises(ConfigError, match=r"settings\.toml: http\.prot is not a setting"):
        load_config(path)


def test_a_secret_of_the_wrong_type_is_not_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(overrides={"http.keys.api_keys": [123456]})
    assert "123456" not in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        KeyConfig(api_keys=("s3cret", ""))
    assert "s3cret" not in str(caught.value)
    keys = KeyConfig(api_keys=("s3cret",), admin_api_keys=("s3cret",))
    assert "s3cret" not in repr(ServerConfig(http=HttpConfig(keys=keys)))


def test_a_list_comes_from_the_file_or_from_an_override(tmp_path: Path) -> None:
    path = written(tmp_path, '[http.keys]\napi_keys = ["a", "b"]\n')
    assert load_config(path).http.keys.api_keys == ("a", "b")
    assert load_config(path, {"http.keys.api_keys": ["c"]}).http.keys.api_keys == ("c",)


def test_a_file_that_is_missing_or_not_toml_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the settings file"):
        load_config(tmp_path / "absent.toml")
    with pytest.raises(ConfigError, match="is not valid TOML"):
        load_config(written(tmp_path, "port = = 1"))
    (tmp_path / "latin.toml").write_bytes(b"a = '\xe9'")
    with pytest.raises(ConfigError, match="is not valid TOML"):
        load_config(tmp_path / "latin.toml")


def test_an_override_below_a_value_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"http\.port\.x is not a setting"):
        load_config(overrides={"http.port": 1, "http.port.x": 2})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("engine.cache.block_size=8", ("engine.cache.block_size", 8)),
        ("engine.cache.prefix_cache = false", ("engine.cache.prefix_cache", False)),
        ("http.host=0.0.0.0", ("http.host", "0.0.0.0")),
        ("engine.model.model=org/name", ("engine.model.model", "org/name")),
        ('http.keys.api_keys=["1234"]', ("http.keys.api_keys", ["1234"])),
        ("http.keys.api_key_file=a=b", ("http.keys.api_key_file", "a=b")),
    ],
)
def test_an_override_is_read_as_toml_and_else_as_text(
    text: str, expected: tuple[str, object]
) -> None:
    assert parse_override(text) == expected


@pytest.mark.parametrize("text", ["engine.cache.block_size", "=8", ""])
def test_an_override_without_key_or_value_is_a_config_error(text: str) -> None:
    with pytest.raises(ConfigError, match="an override is key=value"):
        parse_override(text)


def test_every_setting_has_a_key_and_takes_its_own_default_back() -> None:
    overrides: dict[str, object] = {}
    for key in config_keys():
        value: Any = ServerConfig()
        for name in key.split("."):
            value = getattr(value, name)
        overrides[key] = value
    assert "engine.cache.block_size" in overrides
    assert load_config(overrides=overrides) == ServerConfig()


@pytest.mark.parametrize("path", sorted((REPO / "configs").glob("*.toml")), ids=lambda p: p.name)
def test_a_shipped_file_can_be_loaded(path: Path) -> None:
    assert isinstance(load_config(path), ServerConfig)


def test_the_cpu_file_spells_out_the_defaults() -> None:
    assert load_config(REPO / "configs" / "cpu-default.toml") == ServerConfig()


def test_the_cpu_file_names_every_setting() -> None:
    text = (REPO / "configs" / "cpu-default.toml").read_text(encoding="utf-8")
    named = set(re.findall(r"^(?:# )?(\w+) = ", text, re.MULTILINE))

    assert {key.rpartition(".")[2] for key in config_keys()} - named == set()


def test_the_gpu_file_explains_every_setting_of_the_engine() -> None:
    text = (REPO / "configs" / "gpu.toml").read_text(encoding="utf-8")
    explained = set(re.findall(r"^(?:# )?(\w+) = [^#\n]+#", text, re.MULTILINE))
    names = {key.rpartition(".")[2] for key in config_keys() if key.startswith("engine.")}

    assert names - explained == set()


def test_settings_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        ServerConfig().http.port = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda: ModelConfig(model=""), "model"),
        (lambda: ModelConfig(max_model_len=1), "max_model_len"),
        (lambda: CacheConfig(memory_fraction=0), "memory_fraction"),
        (lambda: CacheConfig(memory_fraction=0.96), "memory_fraction"),
        (lambda: CacheConfig(num_blocks=0), "num_blocks"),
        (lambda: CacheConfig(kv_cache_memory_bytes=0), "kv_cache_memory_bytes"),
        (lambda: SchedulerConfig(max_num_seqs=0), "max_num_seqs"),
        (lambda: SchedulerConfig(max_num_batched_tokens=63), "max_num_batched_tokens"),
        (lambda: SchedulerConfig(prefill_chunk_len=0), "prefill_chunk_len"),
        (lambda: SchedulerConfig(aged_every=0), "aged_every"),
        (lambda: SchedulerConfig(max_queued_tokens=0), "max_queued_tokens"),
        (lambda: SchedulerConfig(max_queue_len=0), "max_queue_len"),
        (lambda: SchedulerConfig(preemption_mode="drop"), "preemption_mode"),  # type: ignore[arg-type]
        (lambda: CacheConfig(swap_space_bytes=-1), "swap_space_bytes"),
        (
            lambda: EngineConfig(
                cache=CacheConfig(swap_space_bytes=0),
                scheduler=SchedulerConfig(preemption_mode="swap"),
            ),
            "swap_space_bytes",
        ),
        (lambda: CascadeConfig(min_sharers=1), "min_sharers"),
        (lambda: CascadeConfig(min_shared_tokens=0), "min_shared_tokens"),
        (lambda: CascadeConfig(max_levels=0), "max_levels"),
        (lambda: HttpConfig(max_body_bytes=1), "max_body_bytes"),
        (lambda: HttpConfig(shutdown_grace_s=-1), "shutdown_grace_s"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(make: Any, key: str) -> None:
    with pytest.raises(ConfigError, match=f"^{key} must be"):
        make()
