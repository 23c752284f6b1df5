"""The configuration of the target and its documentation."""

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import batch_pipeline
from batch_pipeline.model.encoding import Compression, Encoding, Format
from batch_pipeline.model.errors import ConfigurationError, InvalidValueError
from batch_pipeline.singer.target.config import (
    _KEYS,
    Bounds,
    TargetConfig,
    read_config,
    stream_name,
)

UNKNOWN_USER = "~a-user-that-no-machine-has"
KNOWN_KEYS = [*_KEYS, "batch_size_rows", "validate_records"]


def _read(**given: Any) -> TargetConfig:
    return read_config(given, dict.fromkeys(KNOWN_KEYS))


def test_empty_config_has_defaults() -> None:
    assert _read() == TargetConfig(
        encoding=Encoding(format=Format.JSONL, compression=Compression.GZIP)
    )


def test_bounds_are_the_strictest_limits() -> None:
    assert _read(max_records=50, batch_size_rows=20, max_bytes=7, max_age_seconds=1).bounds == (
        Bounds(max_records=20, max_bytes=7, max_age_seconds=1.0)
    )


def test_parquet_is_compressed_with_snappy_by_default() -> None:
    assert _read(format="parquet").encoding.compression is Compression.SNAPPY
    assert _read(format="parquet", compression="zstd").encoding.compression is Compression.ZSTD


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"max_records": 0}, "max_records"),
        ({"max_records": True}, "max_records"),
        ({"max_bytes": "1MiB"}, "max_bytes"),
        ({"max_age_seconds": 0}, "max_age_seconds"),
        ({"max_age_seconds": -1}, "max_age_seconds"),
        ({"max_age_seconds": float("nan")}, "max_age_seconds"),
        ({"max_age_seconds": float("inf")}, "max_age_seconds"),
        ({"max_age_seconds": float("-inf")}, "max_age_seconds"),
        ({"max_age_seconds": Decimal("NaN")}, "max_age_seconds"),
        ({"max_age_seconds": Decimal("sNaN")}, "max_age_seconds"),
        ({"max_age_seconds": Decimal("1e400")}, "max_age_seconds"),
        ({"max_age_seconds": 10**400}, "max_age_seconds"),
        ({"format": "arrow"}, "format"),
        ({"compression": "xz"}, "compression"),
        ({"compression": "snappy"}, "encoding.compression"),
        ({"batch_files": "move"}, "batch_files"),
        ({"create_streams": "yes"}, "create_streams"),
        ({"home": ""}, "home"),
        ({"stream_names": []}, "stream_names"),
        ({"stream_names": {"a": 1}}, "stream_names.a"),
        ({"batch_config": 7}, "batch_config"),
        ({"batch_config": {"encoding": {"format": "csv"}}}, "batch_config.encoding.format"),
        ({"batch_config": {"encoding": {}}}, "batch_config.encoding.format"),
        ({"batch_config": {"storage": {"prefix": "a"}}}, "batch_config.storage.root"),
        ({"batch_config": {"storage": {"root": "/a", "prefix": 1}}}, "batch_config.storage.prefix"),
        (
            {"batch_config": {"storage": {"root": "/a", "params": []}}},
            "batch_config.storage.params",
        ),
        ({"batch_config": {"batch_size": 0}}, "batch_config.batch_size"),
        ({"batch_config": {"batch_size": True}}, "batch_config.batch_size"),
        ({"max_expansion": 0}, "max_expansion"),
        ({"batch_roots": "/external"}, "batch_roots"),
        ({"batch_roots": [7]}, "batch_roots"),
        ({"batch_roots": ["https://host/external"]}, "batch_roots"),
        ({"batch_roots": ["file://host/external"]}, "batch_roots"),
        ({"batch_roots": ["s3://key:hunter2@bucket/external"]}, "batch_roots"),
    ],
)
def test_invalid_config_is_rejected_with_key(given: dict[str, Any], key: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        _read(**given)
    assert caught.value.name == key


@pytest.mark.parametrize(
    ("given", "name", "hint"),
    [
        ({"max_recrods": 1}, "max_recrods", "Did you mean 'max_records'?"),
        ({"batch_config": {"storge": {}}}, "batch_config.storge", "Did you mean 'storage'?"),
        (
            {"batch_config": {"encoding": {"format": "jsonl", "level": 3}}},
            "batch_config.encoding.level",
            "Known keys: format, compression.",
        ),
    ],
)
def test_unknown_key_is_rejected_with_a_hint(given: dict[str, Any], name: str, hint: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        _read(**given)
    assert str(caught.value) == (
        f"`{name}` is not a key of the target's config. {hint} Nothing was read from the tap. "
        f"Correct or remove the key."
    )


@pytest.mark.parametrize("path", [f"{UNKNOWN_USER}/x", "a\0b", "a\ud800"])
@pytest.mark.parametrize(
    ("key", "given"),
    [
        ("home", lambda path: {"home": path}),
        ("streams_folder", lambda path: {"streams_folder": path}),
        ("landing_root", lambda path: {"landing_root": path}),
        ("batch_roots", lambda path: {"batch_roots": ["/external", path]}),
        (
            "batch_config.storage.root",
            lambda path: {"batch_config": {"storage": {"root": path}}},
        ),
    ],
)
def test_invalid_path_is_rejected(
    key: str, given: Callable[[str], dict[str, Any]], path: str
) -> None:
    with pytest.raises(InvalidValueError) as caught:
        _read(**given(path))
    assert caught.value.name == key
    if path.startswith("~"):
        assert "whose ~ names a user here" in str(caught.value)


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


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("public-orders", "public-orders"),
        ("a b", "a_b-806c5cd3"),
        (".hidden", "hidden-3b71d5a1"),
        ("日本", "_-c7b7cdcc"),
    ],
)
def test_valid_stream_names_are_kept(name: str, expected: str) -> None:
    assert stream_name(name) == expected


def test_every_setting_is_documented() -> None:
    page = Path(batch_pipeline.__file__).parent / "docs/reference/singer.md"
    section = page.read_text(encoding="utf-8").partition("\n## Target")[2].partition("\n## ")[0]
    assert [key for key in _KEYS if f"`{key}`" not in section] == []
