"""Polled landings: files that are returned again, and no missed files."""

import os
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from batch_pipeline.model.item import LandedFile, Registered
from batch_pipeline.model.location import to_uri
from batch_pipeline.model.stream import Source
from batch_pipeline.storage.landing import SourceLanding
from batch_pipeline.storage.landing_poll import PolledLanding, SeenFiles, fingerprint
from batch_pipeline_tests.factories import stream

NOON = 1_750_000_000


def _land(path: Path, text: str = "a\n", *, seconds: int = NOON) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (seconds, seconds))
    return path


def test_polled_landing_returns_link_with_new_target(tmp_path: Path) -> None:
    targets = _land(tmp_path / "real" / "old"), _land(tmp_path / "real" / "new", "longer\n")
    link = tmp_path / "landing" / "a.csv"
    link.parent.mkdir()
    source = Source(uri=to_uri(link.parent), roots=(to_uri(tmp_path / "real"),))
    polled = PolledLanding(SourceLanding(stream=stream(source=source)))
    for target in targets:
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        [file] = polled.found_files()
        assert file.location == to_uri(link)
        polled.settled(Registered(found=1, new_items=1))


def test_postponed_file_is_returned_again(tmp_path: Path) -> None:
    location = to_uri(_land(tmp_path / "a.csv"))
    polled = PolledLanding(SourceLanding(stream=stream(source=Source(uri=to_uri(tmp_path)))))
    returned, known = [], []
    for result in (Registered(postponed=(location,)), Registered(new_items=1), Registered()):
        returned.append([file.location for file in polled.found_files()])
        known.append(polled.settled(result).found)
    assert (returned, known) == ([[location], [location], []], [0, 1, 1])


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


def test_seen_file_is_recognized_only_if_unchanged() -> None:
    seen = SeenFiles([fingerprint("b", 10, "x"), fingerprint("a", 10, "x")])
    assert fingerprint("a", 10, "x") in seen
    for other in (("c", 10, "x"), ("a", 11, "x"), ("a", 10, "y"), ("a", 10, 0)):
        assert fingerprint(*other) not in seen


def test_seen_files_are_counted() -> None:
    fingerprints = [fingerprint("a", size_bytes, 0) for size_bytes in range(2_000)]
    seen = SeenFiles(fingerprints)
    assert len(seen) == 2_000
    assert all(one in seen for one in fingerprints)
    assert not any(fingerprint("b", size_bytes, 0) in seen for size_bytes in range(2_000))
    assert (len(SeenFiles()), fingerprints[0] in SeenFiles()) == (0, False)
