"""A landing that is polled: what it lists again, and what it never leaves out."""

import os
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from batch_pipeline.model.item import LandedFile, Registered
from batch_pipeline.model.location import to_uri
from batch_pipeline.model.stream import Source
from batch_pipeline.storage.filesystem import FileFacts
from batch_pipeline.storage.landing import SourceLanding
from batch_pipeline.storage.landing_poll import PolledLanding, SeenFiles, fingerprint
from batch_pipeline_tests.factories import found_file, stream

NOON = 1_750_000_000


def _land(path: Path, text: str = "a\n", *, seconds: int = NOON) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (seconds, seconds))
    return path


def _watched(root: Path, *roots: Path) -> PolledLanding:
    source = Source(uri=to_uri(root), roots=tuple(to_uri(one) for one in roots))
    return PolledLanding(SourceLanding(stream=stream(source=source), wait=False))


def _look(watched: PolledLanding, *, changed: tuple[str, ...] = ()) -> list[str]:
    """List, let the meta table have it all but what differs from its rows, and give the names."""
    files = list(watched.found_files())
    locations = {file.location for file in files}
    differing = tuple(name for name in changed if name in locations)
    watched.settled(Registered(found=len(files), new_items=len(files), changed=differing))
    return [file.location.rsplit("/", 1)[-1] for file in files]


def test_watched_landing_lists_each_file_once(tmp_path: Path) -> None:
    _land(tmp_path / "b.csv")
    _land(tmp_path / "sub" / "c.csv")
    watched = _watched(tmp_path)
    assert _look(watched) == ["b.csv", "c.csv"]
    _land(tmp_path / "d.csv")
    _land(tmp_path / "a.csv")
    assert _look(watched) == ["a.csv", "d.csv"]
    assert _look(watched) == []


def test_watched_landing_counts_all_files(tmp_path: Path) -> None:
    _land(tmp_path / "a.csv")
    watched = _watched(tmp_path)
    _look(watched)
    _land(tmp_path / "b.csv")
    found = list(watched.found_files())
    told = watched.settled(Registered(found=len(found), new_items=1))
    assert (told.found, told.new_items) == (2, 1)


def test_watched_landing_lists_a_file_that_was_written_in_place(tmp_path: Path) -> None:
    longer, later = _land(tmp_path / "a.csv"), _land(tmp_path / "b.csv")
    _land(tmp_path / "c.csv")
    os.utime(tmp_path, (NOON, NOON))
    watched = _watched(tmp_path)
    _look(watched)
    _land(longer, "a\nb\n")
    _land(later, seconds=NOON + 1)
    os.utime(tmp_path, (NOON, NOON))
    assert _look(watched) == ["a.csv", "b.csv"]


def test_watched_landing_asks_for_a_differing_file_again_and_again(tmp_path: Path) -> None:
    path = _land(tmp_path / "a.csv")
    watched = _watched(tmp_path)
    differs = (to_uri(path),)
    assert [_look(watched, changed=differs) for _ in range(2)] == [["a.csv"], ["a.csv"]]
    assert _look(watched) == ["a.csv"]
    assert _look(watched) == []


def test_watched_landing_remembers_nothing_of_a_listing_that_failed(tmp_path: Path) -> None:
    _land(tmp_path / "a.csv")
    watched = _watched(tmp_path)
    assert len(list(watched.found_files())) == 1
    assert _look(watched) == ["a.csv"]


def test_watched_landing_forgets_files_that_are_gone(tmp_path: Path) -> None:
    path = _land(tmp_path / "a.csv")
    watched = _watched(tmp_path)
    _look(watched)
    path.unlink()
    assert list(watched.found_files()) == []
    assert watched.settled(Registered(found=0, new_items=0)).found == 0
    _land(path)
    assert _look(watched) == ["a.csv"]


def test_watched_landing_follows_a_link_that_points_elsewhere(tmp_path: Path) -> None:
    old, new = _land(tmp_path / "real" / "old"), _land(tmp_path / "real" / "new", "longer\n")
    landing = tmp_path / "landing"
    landing.mkdir()
    link = landing / "a.csv"
    link.symlink_to(old)
    watched = _watched(landing, tmp_path / "real")
    _look(watched)
    link.unlink()
    link.symlink_to(new)
    assert _look(watched) == ["a.csv"]


_DEEDS = st.lists(
    st.tuples(
        st.sampled_from(["a.csv", "b.csv", "s/c.csv"]),
        st.sampled_from(["", "1", "22", None]),
        st.integers(0, 2),
    ),
    max_size=8,
)


@settings(max_examples=60, deadline=None)
@given(days=st.lists(_DEEDS, min_size=1, max_size=4))
def test_watched_landing_is_as_good_as_listing_all(
    days: list[list[tuple[str, str | None, int]]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        source = Source(uri=to_uri(root))
        landing = SourceLanding(stream=stream(source=source), wait=False)
        watched, told = PolledLanding(landing), dict[str, LandedFile]()
        for deeds in days:
            for name, text, seconds in deeds:
                if text is None:
                    (root / name).unlink(missing_ok=True)
                else:
                    _land(root / name, text, seconds=NOON + seconds)
            everything = list(landing.found_files())
            for file in watched.found_files():
                told[file.location] = file
            watched.settled(Registered(found=0, new_items=0))
            assert {file.location: file for file in everything}.items() <= told.items()


def print_of(number: int = 1, **facts: Any) -> int:
    """Compute the fingerprint of a file."""
    file = found_file(number, **facts)
    assert file.size_bytes is not None
    assert file.modified_at is not None
    known = FileFacts(size_bytes=file.size_bytes, modified_at=file.modified_at, etag=file.etag)
    return fingerprint(file.location, file.size_bytes, known.state)


def test_known_file_is_known_as_it_stood() -> None:
    known = SeenFiles([print_of(2), print_of(etag="a")])
    assert print_of(etag="a") in known
    others = [print_of(etag="b"), print_of(etag=None), print_of(etag="a", size_bytes=11)]
    assert [other in known for other in [*others, print_of(3)]] == [False] * 4


def test_known_files_are_counted() -> None:
    assert len(SeenFiles()) == 0
    assert print_of() not in SeenFiles()
    stamps = [print_of(number) for number in range(2_000)]
    known = SeenFiles(stamps)
    assert len(known) == 2_000
    assert all(stamp in known for stamp in stamps)
