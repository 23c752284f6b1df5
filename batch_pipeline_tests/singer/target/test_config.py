"""The configuration of the target and its documentation."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from singer_sdk.plugin_base import JSONSchemaValidator

import batch_pipeline
from batch_pipeline.model.encoding import Compression, Encoding, Format
from batch_pipeline.model.errors import ConfigurationError, InvalidValueError
from batch_pipeline.singer.target.config import (
    CONFIG_SCHEMA,
    TargetConfig,
    read_config,
    stream_name,
)
from batch_pipeline.singer.target.target import LandingTarget
from batch_pipeline_tests.singer.tap.tap_fixture import signals_restored

UNKNOWN_USER = "~a-user-that-no-machine-has"
KEYS = [*CONFIG_SCHEMA["properties"]]
KNOWN_KEYS = [*KEYS, "batch_size_rows", "load_method", "validate_records"]


def _read(**given: Any) -> TargetConfig:
    return read_config(given, dict.fromkeys(KNOWN_KEYS))


def test_empty_config_has_defaults() -> None:
    assert _read() == TargetConfig(
        encoding=Encoding(format=Format.JSONL, compression=Compression.GZIP)
    )


def test_bounds_are_the_strictest_limits() -> None:
    bounds = _read(max_records=50, batch_size_rows=20, max_bytes=7, max_age_seconds=1).bounds
    assert (bounds.max_records, bounds.max_bytes, bounds.max_age_seconds) == (20, 7, 1.0)


def test_age_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TARGET_BATCH_PIPELINE_MAX_AGE_SECONDS", "2.5")
    with signals_restored():
        settings = LandingTarget(parse_env_config=True).settings
    assert settings.bounds.max_age_seconds == 2.5


def test_parquet_is_compressed_with_snappy_by_default() -> None:
    assert _read(format="parquet").encoding.compression is Compression.SNAPPY
    assert _read(format="parquet", compression="zstd").encoding.compression is Compression.ZSTD


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"max_records": 0}, "max_records"),
        ({"max_records": True}, "max_records"),
        ({"max_bytes": "1MiB"}, "max_bytes"),
        ({"format": "arrow"}, "format"),
        ({"compression": "xz"}, "compression"),
        ({"compression": "snappy"}, "encoding.compression"),
        ({"batch_files": "move"}, "batch_files"),
        *(({"stream_names": {"a": name}}, "stream_names.a") for name in ("my orders", "../x")),
        ({"load_method": "overwrite"}, "load_method"),
        ({"home": ""}, "home"),
        ({"batch_config": {"storage": {"prefix": "a"}}}, "batch_config.storage.root"),
        ({"max_expansion": 0}, "max_expansion"),
    ],
)
def test_invalid_config_is_rejected_with_key(given: dict[str, Any], key: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        _read(**given)
    assert caught.value.name == key


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"create_streams": "yes"}, "create_streams"),
        ({"stream_names": []}, "stream_names"),
        ({"stream_names": {"a": 1}}, "stream_names.a"),
        ({"stream_names": {"a": ""}}, "stream_names.a"),
        ({"batch_roots": "/external"}, "batch_roots"),
        ({"batch_roots": [7]}, "batch_roots.0"),
        ({"batch_config": 7}, "batch_config"),
        ({"batch_config": {"storge": {}}}, "batch_config"),
        ({"batch_config": {"encoding": {"format": "csv"}}}, "batch_config.encoding.format"),
        ({"batch_config": {"encoding": {}}}, "batch_config.encoding"),
        ({"batch_config": {"encoding": {"format": "jsonl", "level": 3}}}, "batch_config.encoding"),
        ({"batch_config": {"storage": {"root": ""}}}, "batch_config.storage.root"),
        ({"batch_config": {"storage": {"root": "a", "prefix": 1}}}, "batch_config.storage.prefix"),
        ({"batch_config": {"storage": {"root": "a", "params": []}}}, "batch_config.storage.params"),
        ({"batch_config": {"batch_size": 0}}, "batch_config.batch_size"),
    ],
)
def test_config_that_does_not_fit_the_schema_is_rejected(config: dict[str, Any], key: str) -> None:
    errors = JSONSchemaValidator(CONFIG_SCHEMA).iter_errors(config)
    assert [".".join(map(str, error.absolute_path)) for error in errors] == [key]


INVALID_AGES = [
    *(0, -1, 10**400, float("nan"), float("inf"), float("-inf")),
    *(Decimal("NaN"), Decimal("sNaN"), Decimal("1e400"), "5m"),
]
INVALID_ROOTS = [
    *([""], ["https://host/external"], ["file://host/external"]),
    ["s3://key:hunter2@bucket/external"],
]


@pytest.mark.parametrize(
    ("key", "values"), [("max_age_seconds", INVALID_AGES), ("batch_roots", INVALID_ROOTS)]
)
def test_invalid_age_or_root_is_rejected(key: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(InvalidValueError) as caught:
            _read(**{key: value})
        assert caught.value.name == key
        assert "hunter2" not in str(caught.value)


def test_unknown_key_is_rejected_with_a_hint() -> None:
    with pytest.raises(ConfigurationError) as caught:
        _read(max_recrods=1)
    assert str(caught.value) == (
        "`max_recrods` is not a key of the target's config. Did you mean 'max_records'? Nothing "
        "was read from the tap. Correct or remove the key."
    )


@pytest.mark.parametrize("path", [f"{UNKNOWN_USER}/x", "a\0b", "a\ud800"])
def test_invalid_path_is_rejected(path: str) -> None:
    for key, value in {
        "home": path,
        "streams_folder": path,
        "landing_root": path,
        "batch_roots": ["/external", path],
        "batch_config": {"storage": {"root": path}},
    }.items():
        with pytest.raises(InvalidValueError) as caught:
            _read(**{key: value})
        assert caught.value.name == (f"{key}.storage.root" if key == "batch_config" else key)
        assert ("whose ~ names a user here" in str(caught.value)) is path.startswith("~")


def test_batch_config_of_the_sdk_is_accepted() -> None:
    written = {
        "encoding": {"format": "jsonl", "compression": "gzip"},
        "storage": {"root": "s3://b/x", "prefix": "p-", "params": {"endpoint_url": "http://h"}},
        "batch_size": 20,
    }
    assert _read(batch_config=written).batch_root == "s3://b/x"


def test_tilde_is_expanded_in_paths() -> None:
    read = _read(home="~/here", batch_roots=["~/b"], batch_config={"storage": {"root": "~/b"}})
    assert read.home == Path.home() / "here"
    assert read.batch_roots.uris == ((Path.home() / "b").as_uri(),)
    assert read.batch_root == str(Path.home() / "b")


def test_batch_roots_may_be_folders_and_prefixes() -> None:
    roots = ["/external/", "/data/../external", "file:///my%20files", "s3a://bucket/external/"]
    assert _read(batch_roots=roots).batch_roots.uris == (
        "file:///external",
        "file:///external",
        "file:///my%20files",
        "s3://bucket/external",
    )


def test_valid_stream_names_are_kept() -> None:
    names = [stream_name(name) for name in ("public-orders", "a b", ".hidden", "日本")]
    assert names == ["public-orders", "a_b-806c5cd3", "hidden-3b71d5a1", "_-c7b7cdcc"]


def test_every_setting_is_documented() -> None:
    page = Path(batch_pipeline.__file__).parent / "docs/reference/singer.md"
    section = page.read_text(encoding="utf-8").partition("\n## Target")[2].partition("\n## ")[0]
    assert [key for key in KEYS if f"`{key}`" not in section] == []
