"""What is known of files in few bytes: it tells files and their versions apart."""

from typing import Any

from batch_pipeline.storage.filesystem import FileFacts
from batch_pipeline.storage.landing_poll import SeenFiles, fingerprint
from batch_pipeline_tests.factories import found_file


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
