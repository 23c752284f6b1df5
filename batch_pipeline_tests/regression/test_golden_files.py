"""Encoding the same input yields the bytes of the golden files."""

import os
from pathlib import Path

import pytest

from batch_pipeline_tests.regression.golden import (
    check_libraries,
    golden_entries,
    golden_streams,
    installed_libraries,
)
from batch_pipeline_tests.regression.snapshots import UPDATE, committed, compare, key_paths

GOLDEN, LIBRARIES = "golden_files.json", "golden_libraries.json"


def test_golden_files_are_unchanged(tmp_path: Path, database_url: str, *, long_form: bool) -> None:
    """The short form encodes inputs of text in one format each."""
    is_update = bool(os.environ.get(UPDATE))
    if is_update:
        compare(LIBRARIES, installed_libraries())
    check_libraries(committed(LIBRARIES), installed_libraries())
    streams = golden_streams(in_all_formats=long_form or is_update)
    omitted = golden_streams(in_all_formats=True).keys() - streams.keys()
    not_encoded = {
        name: entry
        for name, entry in committed(GOLDEN).items()
        if name.rpartition(" batch ")[0] in omitted
    }
    compare(GOLDEN, not_encoded | golden_entries(streams, tmp_path, database_url))


def test_another_library_version_fails_and_is_named() -> None:
    expected = {**installed_libraries(), "pyarrow": "1.0"}
    with pytest.raises(AssertionError, match=r"pyarrow 1\.0, installed is .* nothing was compared"):
        check_libraries(expected, installed_libraries())


def test_comparison_names_each_changed_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(UPDATE, raising=False)
    before = committed(LIBRARIES)
    removed, changed, *_ = sorted(before)
    current = {**before, changed: "9", "new": "1"}
    del current[removed]
    with pytest.raises(AssertionError) as caught:
        compare(LIBRARIES, current)
    lines = str(caught.value).splitlines()
    assert lines[0] == f"{LIBRARIES}: entries that differ: 3."
    assert lines[1:4] == [
        f"- {removed}: is missing",
        f'! {changed}: was "{before[changed]}", is "9"',
        '+ new: is new: "1"',
    ]
    assert "--update" in lines[4]


def test_key_paths_include_nested_keys() -> None:
    value = {"a": [{"b": 1}, {"c": {"d": None}}], "e": [[{"f": 1}]]}
    assert sorted(set(key_paths(value))) == ["a", "a[].b", "a[].c", "a[].c.d", "e", "e[][].f"]
