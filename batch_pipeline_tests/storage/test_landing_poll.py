"""Polled landings: files that are returned again, and no missed files."""

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


def _polled_landing(root: Path, *roots: Path) -> PolledLanding:
    source = Source(uri=to_uri(root), roots=tuple(to_uri(one) for one in roots))
    return PolledLanding(SourceLanding(stream=stream(source=source), wait=False))


def _poll(polled: PolledLanding, *, changed: tuple[str, ...] = ()) -> list[str]:
    """Poll, register all files except those that differ from their rows, and return the names."""
    files = list(polled.found_files())
    locations = {file.location for file in files}
    changed_files = tuple(name for name in changed if name in locations)
    polled.settled(Registered(found=len(files), new_items=len(files), changed=changed_files))
    return [file.location.rsplit("/", 1)[-1] for file in files]


def test_polled_landing_returns_link_with_new_target(tmp_path: Path) -> None:
    old, new = _land(tmp_path / "real" / "old"), _land(tmp_path / "real" / "new", "longer\n")
    landing = tmp_path / "landing"
    landing.mkdir()
    link = landing / "a.csv"
    link.symlink_to(old)
    polled = _polled_landing(landing, tmp_path / "real")
    _poll(polled)
    link.unlink()
    link.symlink_to(new)
    assert _poll(polled) == ["a.csv"]


_CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["a.csv", "b.csv", "s/c.csv"]),
        st.sampled_from(["", "1", "22", None]),
        st.integers(0, 2),
    ),
    max_size=8,
)


@settings(max_examples=60, deadline=None)
@given(polls=st.lists(_CHANGES, min_size=1, max_size=4))
def test_polled_landing_misses_nothing_that_a_full_listing_has(
    polls: list[list[tuple[str, str | None, int]]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        source = Source(uri=to_uri(root))
        landing = SourceLanding(stream=stream(source=source), wait=False)
        polled, returned = PolledLanding(landing), dict[str, LandedFile]()
        for changes in polls:
            for name, text, seconds in changes:
                if text is None:
                    (root / name).unlink(missing_ok=True)
                else:
                    _land(root / name, text, seconds=NOON + seconds)
            everything = list(landing.found_files())
            for file in polled.found_files():
                returned[file.location] = file
            polled.settled(Registered(found=0, new_items=0))
            assert {file.location: file for file in everything}.items() <= returned.items()


def fingerprint_of(number: int = 1, **facts: Any) -> int:
    file = found_file(number, **facts)
    assert file.size_bytes is not None
    assert file.modified_at is not None
    known = FileFacts(size_bytes=file.size_bytes, modified_at=file.modified_at, etag=file.etag)
    return fingerprint(file.location, file.size_bytes, known.state)


def test_seen_file_is_recognized_only_if_unchanged() -> None:
    seen = SeenFiles([fingerprint_of(2), fingerprint_of(etag="a")])
    assert fingerprint_of(etag="a") in seen
    others = [
        fingerprint_of(etag="b"),
        fingerprint_of(etag=None),
        fingerprint_of(etag="a", size_bytes=11),
    ]
    assert [other in seen for other in [*others, fingerprint_of(3)]] == [False] * 4


def test_seen_files_are_counted() -> None:
    assert len(SeenFiles()) == 0
    assert fingerprint_of() not in SeenFiles()
    fingerprints = [fingerprint_of(number) for number in range(2_000)]
    seen = SeenFiles(fingerprints)
    assert len(seen) == 2_000
    assert all(one in seen for one in fingerprints)
