"""The same input gives the same bytes as in the revision that the golden files were made with."""

import os
from pathlib import Path

import pytest

from batch_pipeline_tests.regression.golden import (
    check_libraries,
    golden_entries,
    installed_libraries,
)
from batch_pipeline_tests.regression.snapshots import UPDATE, committed, compare, key_paths

LIBRARIES = "golden_libraries.json"


def test_golden_files_have_the_bytes_of_before(tmp_path: Path, database_url: str) -> None:
    """Expect part files, manifests and quarantine files of all inputs to be unchanged."""
    if os.environ.get(UPDATE):
        compare(LIBRARIES, installed_libraries())
    check_libraries(committed(LIBRARIES), installed_libraries())
    compare("golden_files.json", golden_entries(tmp_path, database_url))


def test_golden_files_with_another_library_version_fail_with_its_name() -> None:
    made_with = {**installed_libraries(), "pyarrow": "1.0"}
    with pytest.raises(AssertionError, match=r"pyarrow 1\.0, installed is .* nothing was compared"):
        check_libraries(made_with, installed_libraries())


def test_comparison_with_changed_entries_names_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(UPDATE, raising=False)
    before = committed(LIBRARIES)
    removed, changed, *_ = sorted(before)
    now = {**before, changed: "9", "new": "1"}
    del now[removed]
    with pytest.raises(AssertionError) as caught:
        compare(LIBRARIES, now)
    lines = str(caught.value).splitlines()
    assert lines[0] == f"{LIBRARIES}: entries that differ: 3."
    assert lines[1:4] == [
        f"- {removed}: is missing",
        f'! {changed}: was "{before[changed]}", is "9"',
        '+ new: is new: "1"',
    ]
    assert "--update" in lines[4]


def test_key_paths_of_nested_json_name_keys_at_every_level() -> None:
    value = {"a": [{"b": 1}, {"c": {"d": None}}], "e": [[{"f": 1}]]}
    assert sorted(set(key_paths(value))) == ["a", "a[].b", "a[].c", "a[].c.d", "e", "e[][].f"]
