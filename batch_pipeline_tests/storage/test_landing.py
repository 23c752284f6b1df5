"""Listing a landing, a folder or a bucket: which files are listed, their order and their facts."""

import errno
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from fnmatch import fnmatchcase
from itertools import count
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_pipeline.encode.readers.decoded_file import ItemCutter
from batch_pipeline.inventory.database import Database
from batch_pipeline.model.errors import ConfigurationError, LandingUnavailableError
from batch_pipeline.model.item import LandedFile, Registered
from batch_pipeline.model.location import to_path, to_uri
from batch_pipeline.model.stream import Source
from batch_pipeline.storage.landing import UNFINISHED, SourceLanding, compare, wanted_names
from batch_pipeline.storage.s3 import S3
from batch_pipeline_tests.factories import found_file, stream
from batch_pipeline_tests.storage.bucket_landing import BucketLanding, names

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SECOND = 10**9


def _landing(folder: Path, **source: Any) -> SourceLanding:
    """Return the landing of a folder; its clock is at two seconds past noon."""
    return SourceLanding(
        stream=stream(source=Source(uri=to_uri(folder), **source)),
        wait=False,
        now=lambda: NOON.timestamp() + 2,
    )


def _land(path: Path, text: str = "a,b\n", seconds: float = 0) -> Path:
    """Write a file whose modification time is this number of seconds after noon."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    changed = int(NOON.timestamp()) * SECOND + int(seconds * SECOND)
    os.utime(path, ns=(changed, changed))
    return path


def _names(landing: SourceLanding, folder: Path) -> list[str]:
    return [str(Path(to_path(file.location)).relative_to(folder)) for file in landing.found_files()]


def test_listed_file_has_location_size_and_time(tmp_path: Path) -> None:
    path = _land(tmp_path / "a b.csv", "12345")
    os.utime(path, ns=(0, int(NOON.timestamp()) * SECOND + 1_999))
    assert list(_landing(tmp_path).found_files()) == [
        LandedFile(
            location=f"file://{tmp_path}/a%20b.csv",
            size_bytes=5,
            modified_at=NOON.replace(microsecond=1),
        )
    ]


@pytest.mark.parametrize(("year", "listed"), [(12_000, 9999), (-2000, 1)])
def test_listed_file_has_nearest_time_that_every_time_zone_can_show(
    tmp_path: Path, year: int, listed: int
) -> None:
    second = (year - 1970) * 31_556_952
    os.utime(_land(tmp_path / "a.csv"), (second, second))
    if abs((tmp_path / "a.csv").stat().st_mtime - second) > 1:
        pytest.skip("the file system cannot store the time")
    [file] = _landing(tmp_path).found_files()
    assert file.modified_at is not None
    for hours in (-14, 14):
        assert file.modified_at.astimezone(timezone(timedelta(hours=hours))).year == listed


@pytest.mark.parametrize(
    ("seconds", "is_listed"),
    [(1, True), (1.001, False), (2, False), (2.001, False), (61, False), (63, True)],
)
def test_recently_modified_file_is_left_to_next_listing(
    tmp_path: Path, seconds: float, is_listed: bool
) -> None:
    """The clock of a file server may be ahead, but not by more than a minute."""
    _land(tmp_path / "a.csv", seconds=seconds)
    assert _names(_landing(tmp_path), tmp_path) == (["a.csv"] if is_listed else [])


def _waiting_landing(
    folder: Path, at_sleep: Callable[[], object]
) -> tuple[SourceLanding, list[float]]:
    """Return a landing that waits for recent files, with a simulated clock, and its sleeps."""
    clock = [NOON.timestamp() + 0.25]
    sleeps: list[float] = []

    def sleep(seconds: float) -> None:
        sleeps.append(seconds)
        clock[0] += seconds
        at_sleep()

    landing = SourceLanding(
        stream=stream(source=Source(uri=to_uri(folder))),
        wait=True,
        now=lambda: clock[0],
        sleep=sleep,
    )
    return landing, sleeps


def test_waiting_listing_waits_again_if_file_changes(tmp_path: Path) -> None:
    path = _land(tmp_path / "a.csv", "1")
    landing, sleeps = _waiting_landing(tmp_path, lambda: _land(path, "12", seconds=1))
    assert [file.size_bytes for file in landing.found_files()] == [2]
    assert sleeps == [pytest.approx(0.76), pytest.approx(1.0)]
    landing, _ = _waiting_landing(tmp_path, path.unlink)
    _land(path)
    assert list(landing.found_files()) == []


def test_waiting_listing_leaves_file_that_is_always_written_to_the_next_listing(
    tmp_path: Path,
) -> None:
    seconds = count(1)
    landing, sleeps = _waiting_landing(tmp_path, lambda: _land(path, seconds=next(seconds)))
    path = _land(tmp_path / "a.csv")
    _land(tmp_path / "b.csv", seconds=-2)
    assert _names(landing, tmp_path) == ["b.csv"]
    assert 1 < sum(sleeps) < 10


def test_listing_ignores_irregular_files(tmp_path: Path) -> None:
    _land(tmp_path / "real" / "a.csv")
    landing = tmp_path / "landing"
    landing.mkdir()
    os.mkfifo(landing / "pipe")
    (landing / "dangling").symlink_to(tmp_path / "nothing")
    (landing / "circle").symlink_to("circle")
    (landing / "folder").symlink_to(tmp_path / "real")
    (landing / "link.csv").symlink_to(tmp_path / "real" / "a.csv")
    listed_landing = _landing(landing, roots=(to_uri(tmp_path / "real"),))
    assert _names(listed_landing, landing) == ["link.csv"]
    assert listed_landing.troubles == []


def test_links_out_of_the_landing_are_not_listed(tmp_path: Path) -> None:
    secret, landing = _land(tmp_path / "secret.csv"), tmp_path / "landing"
    _land(landing / "b" / "real.csv")
    (landing / "a.csv").symlink_to(secret)
    (landing / "inside.csv").symlink_to(landing / "b" / "real.csv")
    (landing / "z.csv").symlink_to("../secret.csv")
    listed_landing = _landing(landing)
    assert _names(listed_landing, landing) == ["b/real.csv", "inside.csv"]
    [warning] = listed_landing.troubles
    assert "is a link that leads out of the landing" in str(warning)
    assert "a link that leads out of this folder" in listed_landing.why_not(str(landing / "a.csv"))
    (landing / "a.csv").unlink()
    (landing / "z.csv").unlink()
    assert len(list(listed_landing.found_files())) == 2
    assert listed_landing.troubles == []


def test_file_name_that_is_not_utf_8_is_listed(tmp_path: Path) -> None:
    try:
        (tmp_path / os.fsdecode(b"caf\xe9.csv")).write_text("a\n")
    except OSError:
        return  # the file system does not support such names
    (file,) = _landing(tmp_path).found_files()
    assert file.location == f"file://{tmp_path}/caf%E9.csv"


def test_listing_of_landing_that_is_no_folder_is_an_error(tmp_path: Path) -> None:
    for landing, reason in (
        (tmp_path / "nowhere", "no such file or directory"),
        (_land(tmp_path / "a.csv"), "not a directory"),
    ):
        with pytest.raises(LandingUnavailableError, match=reason) as caught:
            list(_landing(landing).found_files())
        assert caught.value.stream == "orders"
        assert ("Create it" in str(caught.value)) == reason.startswith("no such")


def test_folder_that_is_removed_during_the_listing_is_left_out(tmp_path: Path) -> None:
    for name in ("a", "b"):
        _land(tmp_path / name / "1.csv")

    def remove_other(name: str, _size_bytes: int, _state: object) -> bool:
        rmtree(tmp_path / ("b" if name.startswith("a") else "a"))
        return False

    [(name, _)] = _landing(tmp_path).examined(is_known=remove_other)
    assert [f"{one.name}/1.csv" for one in tmp_path.iterdir()] == [name]


def test_unreadable_folder_is_an_error_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The `lost+found` of a volume can be read by root only."""
    for name in ("a.csv", "lost+found/b.csv", "one/c.csv"):
        _land(tmp_path / name)
    opened, refused = os.open, [tmp_path / "lost+found"]

    def open_or_refuse(path: Any, *rest: Any) -> int:
        if Path(path) in refused:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return opened(path, *rest)

    monkeypatch.setattr(os, "open", open_or_refuse)
    assert _names(_landing(tmp_path), tmp_path) == ["a.csv", "one/c.csv"]
    refused.append(tmp_path / "one")
    with pytest.raises(LandingUnavailableError, match="one/: permission denied") as caught:
        list(_landing(tmp_path).found_files())
    assert (
        "Not all new files were registered; a later poll finds the others. "
        "Correct the access, or correct `source`"
    ) in str(caught.value)


def test_file_whose_folder_became_a_file_is_missing(tmp_path: Path) -> None:
    path = _land(tmp_path / "a")
    assert _landing(tmp_path).settled(f"{path.name}/b.csv") is None


def test_unreadable_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "circle.csv"
    path.symlink_to(path)
    with pytest.raises(LandingUnavailableError, match="symbolic links") as caught:
        _landing(tmp_path).settled(path.name)
    assert f"({path}: too many levels" in str(caught.value)


def test_compare_registered_file_with_current_state(tmp_path: Path) -> None:
    """The tables of users may record only the location."""
    path = _land(tmp_path / "a.csv", "123")
    landing = _landing(tmp_path)
    (file,) = landing.found_files()
    assert compare(file) == "unchanged since"
    unrecorded = LandedFile(location=file.location)
    assert compare(unrecorded) == "now 3 B, modified 2026-03-01T12:00:00+00:00"
    _land(path, "1234")
    assert compare(file) == "changed since: now 4 B"
    path.unlink()
    assert compare(file) == "now it cannot be read (no such file or directory)"
    assert compare(LandedFile(location="a.csv")).startswith("which is not an absolute")


def test_why_not_explains_why_file_is_not_listed(tmp_path: Path) -> None:
    root = tmp_path / "landing"
    for name in ("sub/a.csv", "a.csv.tmp", ".hidden/a.csv", "a.txt", "../elsewhere.csv"):
        _land(root / name)
    landing = _landing(root, include=("*.csv", "*.tmp"))
    reasons = {
        "sub/a.csv": "not registered yet: `batch-pipeline run`",
        "a.csv.tmp": "unfinished",
        ".hidden/a.csv": "unfinished",
        "a.txt": "excluded by",
        "missing.csv": "no such file",
        "../elsewhere.csv": "outside",
        "../nowhere.csv": "outside",
    }
    for file, reason in reasons.items():
        assert reason in landing.why_not(file), file
        assert reason in landing.why_not(to_uri(Path(os.path.normpath(root / file)))), file


_PATTERNS = st.lists(
    st.sampled_from(["*", "*a*b*", "a*", "a/*", "*/b", "[!a]*", "?", "*[ab]/*", "", "[", "a\nb*"]),
    max_size=3,
).map(tuple)


@given(
    name=st.text("ab./~\né", max_size=7) | st.sampled_from(["a.tmp", "a/b.tmp", "a.part"]),
    include=_PATTERNS,
    exclude=_PATTERNS,
)
def test_combined_pattern_matches_like_single_patterns(
    name: str, include: tuple[str, ...], exclude: tuple[str, ...]
) -> None:
    *folders, last = name.split("/")

    def matches(pattern: str) -> bool:
        return fnmatchcase(name if "/" in pattern else last, pattern)

    is_unfinished = any(one.startswith(".") for one in folders) or any(map(matches, UNFINISHED))
    is_taken = any(map(matches, include)) and not any(map(matches, exclude))
    source = Source(uri="file:///in", include=include, exclude=exclude)
    file = wanted_names(source).match(name) is not None
    assert file == (bool(name) and is_taken and not is_unfinished)


def test_listed_object_has_the_facts_of_head(s3_landing: BucketLanding) -> None:
    location = s3_landing.put("in/a b%20é+.csv", b"12345")
    [found] = s3_landing.landing().found_files()
    facts = S3.head(location)
    assert found.location == f"{s3_landing.bucket}/in/a b%20é+.csv"
    assert found.size_bytes == 5
    assert (found.modified_at, found.etag) == (facts.modified_at, facts.etag)
    assert found.etag is not None


def test_listing_has_neither_folder_markers_nor_unfinished_names(s3_landing: BucketLanding) -> None:
    for key in ("in/a.csv", "in/sub/b.csv", "inside.csv", "other/a.csv"):
        s3_landing.put(key)
    for key in ("in/", "in/sub/", "in/a.tmp", "in/.hidden/a.csv", "in/empty.csv"):
        s3_landing.put(key, b"")
    assert names(s3_landing.landing()) == ["a.csv", "empty.csv", "sub/b.csv"]
    assert names(s3_landing.landing(exclude=("sub/*",))) == ["a.csv", "empty.csv"]
    whole = s3_landing.landing(uri=s3_landing.bucket, include=("*a.csv",)).found_files()
    assert [file.location for file in whole] == [
        f"{s3_landing.bucket}/in/a.csv",
        f"{s3_landing.bucket}/other/a.csv",
    ]


def test_key_that_looks_like_a_range_is_a_warning_unless_excluded(
    s3_landing: BucketLanding,
) -> None:
    ranges = ("in/#bytes=9-1", "in/a.csv#bytes=0-9", "in/a.csv#bytes=0-9,size=10")
    for key in ("in/+.csv", *ranges, "in/b.csv"):
        s3_landing.put(key)
    landing = s3_landing.landing()
    assert [names(landing), names(landing)] == [["+.csv", "b.csv"]] * 2
    [warning] = landing.troubles  # of the first key
    assert isinstance(warning, ConfigurationError)
    assert ranges[0] in str(warning)
    assert "exclude it with `source.exclude`" in str(warning)
    landing = s3_landing.landing(exclude=("*#bytes*",))
    assert (names(landing), landing.troubles) == (["+.csv", "b.csv"], [])


@pytest.mark.parametrize(("all_or_none", "registered"), [(False, 2), (True, None)])
def test_interrupted_listing_registers_preceding_files(
    database: Database, all_or_none: bool, registered: int | None
) -> None:
    def broken() -> Iterator[LandedFile]:
        yield from (found_file(1), found_file(2))
        raise LandingUnavailableError("orders", "s3://bucket/in", "it does not answer")

    table = database.meta_table("orders")
    with pytest.raises(LandingUnavailableError):
        table.register(broken(), accept_changed=False, all_or_none=all_or_none)
    assert table.high_watermark() == registered


def test_overwritten_object_is_changed_only_if_bytes_differ(
    s3_landing: BucketLanding, database: Database
) -> None:
    location = s3_landing.put("in/a.csv", b"id\n1\n")
    table, landing = database.meta_table("orders"), s3_landing.landing()
    table.register(landing.found_files(), accept_changed=False)
    s3_landing.put("in/a.csv", b"id\n1\n")
    assert table.register(landing.found_files(), accept_changed=False).changed == ()
    s3_landing.put("in/a.csv", b"id\n2\n")
    assert table.register(landing.found_files(), accept_changed=False).changed == (location,)
    assert table.register(landing.found_files(), accept_changed=True) == Registered(
        found=1, new_items=0, accepted=1
    )
    [item] = table.find("a.csv")
    assert item.file.etag == S3.head(location).etag


def test_object_with_number_sign_in_key_is_recognized(
    s3_landing: BucketLanding, database: Database
) -> None:
    ten = b'{"id":1}\n' * 10
    for key, data in (("a", b"1"), ("a#1", b"2"), ("c#2.jsonl", ten), ("b#bytes=", b"4")):
        s3_landing.put(f"in/{key}", data)
    table, landing = database.meta_table("orders"), s3_landing.landing()
    new_items = [_register(database, landing).new_items for _ in range(2)]
    assert new_items == [6, 0]
    found = {name: [one.id for one in table.find(name)] for name in ("a", "a#1", "b#bytes=")}
    assert found == {"a": [1], "a#1": [2], "b#bytes=": [3]}
    assert [one.id for one in table.find(f"{s3_landing.uri}/c#2.jsonl")] == [4, 5, 6]
    location = s3_landing.put("in/a#1", b"3")
    assert _register(database, landing).changed == (location,)


def _register(database: Database, landing: SourceLanding) -> Registered:
    cutter = ItemCutter(stream=landing.stream, most_bytes=40)
    files = landing.found_files()
    return database.meta_table("orders").register(files, accept_changed=False, cutter=cutter)


def test_compare_registered_object_with_current_state(s3_landing: BucketLanding) -> None:
    s3_landing.put("in/a.csv", b"123")
    [found] = s3_landing.landing().found_files()
    assert compare(found) == "unchanged since"
    s3_landing.put("in/a.csv", b"456")
    assert compare(found) == "changed since: now 3 B"
    s3_landing.delete("in/a.csv")
    assert compare(found) == "now it cannot be read (no such file or directory)"


def test_why_not_explains_why_object_is_not_listed(s3_landing: BucketLanding) -> None:
    for key in ("in/sub/a.csv", "in/sub/", "elsewhere.csv"):
        s3_landing.put(key, b"")
    landing, bucket = s3_landing.landing(), s3_landing.bucket
    not_yet = "not registered yet: `batch-pipeline run`"
    reasons = {
        f"{bucket}/in/sub/a.csv": not_yet,
        f"{bucket}/in/sub/a.csv".replace("s3://", "s3a://"): not_yet,
        "sub/": "folder markers",
        "missing.csv": "no such file",
        "a.csv#bytes=0-1": "like a byte range",
        f"{bucket}/elsewhere.csv": "outside",
        "/in/a.csv": "outside",
        "file:///in/a.csv": "outside",
    }
    for file, reason in reasons.items():
        assert reason in landing.why_not(file), file


def test_landing_in_missing_bucket_is_an_error(bucket: str) -> None:
    assert names(BucketLanding(bucket).landing()) == []
    with pytest.raises(LandingUnavailableError, match="there is no such bucket") as caught:
        names(BucketLanding(f"{bucket}-other").landing())
    assert "correct `source` in the stream file" in str(caught.value)
