"""What is known of files in few bytes: it tells files and their versions apart."""

from batch_pipeline.files.known_files import KnownFiles, stamp_of
from batch_pipeline_tests.factories import found_file


def test_known_file_is_known_as_it_stood() -> None:
    """Expect another size, another ETag and another name to be unknown."""
    file = found_file(etag="a")
    known = KnownFiles([stamp_of(found_file(2)), stamp_of(file)])
    assert stamp_of(found_file(etag="a")) in known
    others = [found_file(etag="b"), found_file(etag=None), found_file(etag="a", size_bytes=11)]
    assert [stamp_of(other) in known for other in [*others, found_file(3)]] == [False] * 4


def test_known_files_are_counted() -> None:
    """Expect none in the beginning, and none to be known then."""
    assert len(KnownFiles()) == 0
    assert stamp_of(found_file()) not in KnownFiles()
    stamps = [stamp_of(found_file(number)) for number in range(2_000)]
    known = KnownFiles(stamps)
    assert len(known) == 2_000
    assert all(stamp in known for stamp in stamps)
