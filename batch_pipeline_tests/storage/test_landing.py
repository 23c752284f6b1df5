"""Listing a landing folder: what counts as landed, in which order, with which facts."""

import os
from collections.abc import Callable
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_pipeline.model.errors import LandingUnavailableError
from batch_pipeline.model.item import LandedFile
from batch_pipeline.model.location import to_path, to_uri
from batch_pipeline.model.stream import Source
from batch_pipeline.storage.landing import UNFINISHED, SourceLanding, compare, wanted_names
from batch_pipeline_tests.factories import stream

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SECOND = 10**9


def _landing(folder: Path, **source: Any) -> SourceLanding:
    """The landing of a folder at two seconds past noon."""
    described = Source(uri=to_uri(folder), **source)
    return SourceLanding(
        stream=stream(source=described), wait=False, now=lambda: NOON.timestamp() + 2
    )


def _land(path: Path, text: str = "a,b\n", seconds: float = 0) -> Path:
    """Write a file that was last changed at noon, or that many seconds later."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    changed = int(NOON.timestamp()) * SECOND + int(seconds * SECOND)
    os.utime(path, ns=(changed, changed))
    return path


def _names(landing: SourceLanding, folder: Path) -> list[str]:
    return [
        str(Path(to_path(found.location)).relative_to(folder)) for found in landing.found_files()
    ]


def test_found_file_tells_location_size_and_time(tmp_path: Path) -> None:
    path = _land(tmp_path / "a b.csv", "12345")
    os.utime(path, ns=(0, int(NOON.timestamp()) * SECOND + 1_999))
    assert list(_landing(tmp_path).found_files()) == [
        LandedFile(
            location=f"file://{tmp_path}/a%20b.csv",
            size_bytes=5,
            modified_at=NOON.replace(microsecond=1),
        )
    ]


def test_found_files_come_in_order_from_all_folders(tmp_path: Path) -> None:
    for name in ("b.csv", "a/2.csv", "c/deep/er/1.csv", "a/1.csv", "a.csv"):
        _land(tmp_path / name)
    assert _names(_landing(tmp_path), tmp_path) == [
        "a.csv",
        "a/1.csv",
        "a/2.csv",
        "b.csv",
        "c/deep/er/1.csv",
    ]


@pytest.mark.parametrize("name", [".a.csv", "a.csv.tmp", "a.csv.part", "a.csv~", ".hidden/a.csv"])
def test_found_files_leave_unfinished_names_out(tmp_path: Path, name: str) -> None:
    _land(tmp_path / name)
    assert _names(_landing(tmp_path, include=("*",)), tmp_path) == []


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ({"include": ("*.csv",)}, ["a.csv", "sub/b.csv"]),
        ({"include": ("*.CSV",)}, []),
        ({"include": ("a.*", "*.txt")}, ["a.csv", "a.txt"]),
        ({"exclude": ("*.txt",)}, ["a.csv", "sub/b.csv"]),
        ({"include": ("sub/*",)}, ["sub/b.csv"]),
        ({"exclude": ("sub/*",)}, ["a.csv", "a.txt"]),
        ({"include": ("*.csv",), "exclude": ("a*",)}, ["sub/b.csv"]),
        ({"include": ()}, []),
    ],
)
def test_found_files_follow_include_and_exclude(
    tmp_path: Path, source: dict[str, tuple[str, ...]], names: list[str]
) -> None:
    for name in ("a.csv", "a.txt", "sub/b.csv"):
        _land(tmp_path / name)
    assert _names(_landing(tmp_path, **source), tmp_path) == names


@pytest.mark.parametrize(("seconds", "rested"), [(0, True), (1, True), (1.001, False), (2, False)])
def test_found_files_leave_young_files_to_the_next_listing(
    tmp_path: Path, seconds: float, rested: bool
) -> None:
    _land(tmp_path / "a.csv", seconds=seconds)
    assert _names(_landing(tmp_path), tmp_path) == (["a.csv"] if rested else [])


def test_found_files_take_a_file_from_the_future(tmp_path: Path) -> None:
    _land(tmp_path / "a.csv", seconds=3_600)
    assert _names(_landing(tmp_path), tmp_path) == ["a.csv"]


def _waiting(folder: Path, at_sleep: Callable[[], object]) -> tuple[SourceLanding, list[float]]:
    """A waiting landing whose clock moves by what it sleeps, and its naps."""
    clock = [NOON.timestamp() + 0.25]
    naps: list[float] = []

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        clock[0] += seconds
        at_sleep()

    described = stream(source=Source(uri=to_uri(folder)))
    return SourceLanding(stream=described, wait=True, now=lambda: clock[0], sleep=sleep), naps


def test_found_files_that_wait_take_a_young_file_once_it_has_rested(tmp_path: Path) -> None:
    _land(tmp_path / "a.csv")
    landing, naps = _waiting(tmp_path, lambda: None)
    assert _names(landing, tmp_path) == ["a.csv"]
    assert naps == [pytest.approx(0.76)]


def test_found_files_that_wait_see_what_was_written_meanwhile(tmp_path: Path) -> None:
    path = _land(tmp_path / "a.csv", "1")
    sizes = iter(["12", "12"])
    landing, naps = _waiting(tmp_path, lambda: _land(path, next(sizes), seconds=1))
    assert [found.size_bytes for found in landing.found_files()] == [2]
    assert len(naps) == 2


def test_found_files_that_wait_let_a_deleted_file_go(tmp_path: Path) -> None:
    path = _land(tmp_path / "a.csv")
    landing, _ = _waiting(tmp_path, path.unlink)
    assert list(landing.found_files()) == []


def test_found_files_ignore_what_is_no_file(tmp_path: Path) -> None:
    _land(tmp_path / "real" / "a.csv")
    landing = tmp_path / "landing"
    landing.mkdir()
    os.mkfifo(landing / "pipe")
    (landing / "dangling").symlink_to(tmp_path / "nothing")
    (landing / "circle").symlink_to("circle")
    (landing / "folder").symlink_to(tmp_path / "real")
    (landing / "link.csv").symlink_to(tmp_path / "real" / "a.csv")
    described = _landing(landing, roots=(to_uri(tmp_path / "real"),))
    assert _names(described, landing) == ["link.csv"]
    assert described.troubles == []


def test_found_files_leave_out_links_that_lead_elsewhere(tmp_path: Path) -> None:
    secret, landing = _land(tmp_path / "secret.csv"), tmp_path / "landing"
    _land(landing / "b" / "real.csv")
    (landing / "a.csv").symlink_to(secret)
    (landing / "inside.csv").symlink_to(landing / "b" / "real.csv")
    (landing / "z.csv").symlink_to("../secret.csv")
    described = _landing(landing)
    assert _names(described, landing) == ["b/real.csv", "inside.csv"]
    [told] = described.troubles
    assert "is a link that leads out of the landing" in str(told)
    assert "a link that leads out of this folder" in described.why_not(str(landing / "a.csv"))
    (landing / "a.csv").unlink()
    (landing / "z.csv").unlink()
    assert len(list(described.found_files())) == 2
    assert described.troubles == []


def test_found_files_of_a_name_that_is_no_text_survive(tmp_path: Path) -> None:
    try:
        (tmp_path / os.fsdecode(b"caf\xe9.csv")).write_text("a\n")
    except OSError:
        return  # a file system that refuses such names cannot land them
    (found,) = _landing(tmp_path).found_files()
    assert found.location == f"file://{tmp_path}/caf%E9.csv"


def test_found_files_of_a_missing_folder_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(LandingUnavailableError, match="no such file or directory") as caught:
        list(_landing(tmp_path / "nowhere").found_files())
    assert caught.value.stream == "orders"


def test_found_files_of_a_landing_that_is_a_file_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(LandingUnavailableError, match="not a directory"):
        list(_landing(_land(tmp_path / "a.csv")).found_files())


def test_file_whose_folder_became_a_file_is_gone(tmp_path: Path) -> None:
    path = _land(tmp_path / "a")
    assert _landing(tmp_path).settled(f"{path.name}/b.csv") is None


def test_file_that_cannot_be_looked_at_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "circle.csv"
    path.symlink_to(path)
    with pytest.raises(LandingUnavailableError, match="symbolic links") as caught:
        _landing(tmp_path).settled(path.name)
    assert f"({path}: too many levels" in str(caught.value)


def test_compare_tells_how_a_registered_file_stands_now(tmp_path: Path) -> None:
    path = _land(tmp_path / "a.csv", "123")
    landing = _landing(tmp_path)
    (found,) = landing.found_files()
    assert compare(found) == "unchanged since"
    _land(path, "1234")
    assert compare(found) == "changed since: now 4 B"
    path.unlink()
    assert compare(found) == "now it cannot be read (no such file or directory)"


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ("a.csv", "there and not registered yet"),
        ("sub/a.csv", "there and not registered yet"),
        ("a.csv.tmp", "unfinished"),
        (".hidden/a.csv", "unfinished"),
        ("a.txt", "left out by"),
        ("missing.csv", "no such file"),
        ("../elsewhere.csv", "outside"),
        ("../nowhere.csv", "outside"),
    ],
)
def test_why_not_tells_what_keeps_a_file_out(tmp_path: Path, file: str, reason: str) -> None:
    root = tmp_path / "landing"
    for name in ("a.csv", "sub/a.csv", "a.csv.tmp", ".hidden/a.csv", "a.txt", "../elsewhere.csv"):
        _land(root / name)
    landing = _landing(root, include=("*.csv", "*.tmp"))
    assert reason in landing.why_not(file)
    assert reason in landing.why_not(to_uri(Path(os.path.normpath(root / file))))


_PATTERNS = st.lists(
    st.sampled_from(["*", "*a*b*", "a*", "a/*", "*/b", "[!a]*", "?", "*[ab]/*", "", "[", "a\nb*"]),
    max_size=3,
).map(tuple)


@given(
    name=st.text("ab./~\né", max_size=7) | st.sampled_from(["a.tmp", "a/b.tmp", "a.part"]),
    include=_PATTERNS,
    exclude=_PATTERNS,
)
def test_one_expression_takes_the_names_that_the_single_patterns_take(
    name: str, include: tuple[str, ...], exclude: tuple[str, ...]
) -> None:
    *folders, last = name.split("/")

    def matches(pattern: str) -> bool:
        return fnmatchcase(name if "/" in pattern else last, pattern)

    is_unfinished = any(one.startswith(".") for one in folders) or any(map(matches, UNFINISHED))
    is_taken = any(map(matches, include)) and not any(map(matches, exclude))
    source = Source(uri="file:///in", include=include, exclude=exclude)
    found = wanted_names(source).match(name) is not None
    assert found == (bool(name) and is_taken and not is_unfinished)
