"""Verification of part files."""

import hashlib
from pathlib import Path

from batch_pipeline.model.location import to_uri
from batch_pipeline.model.manifest import PartFile
from batch_pipeline.storage.verification import content_problem, size_problem


def landed(folder: Path, data: bytes = b"12345") -> PartFile:
    """A part file that is there."""
    path = folder / "orders-0.jsonl"
    path.write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    return PartFile(uri=to_uri(path), records=5, size_bytes=len(data), sha256=digest)


def test_file_as_it_was_published_has_no_problem(tmp_path: Path) -> None:
    part = landed(tmp_path)
    assert (size_problem(part), content_problem(part)) == (None, None)


def test_changed_byte_shows_only_to_who_reads(tmp_path: Path) -> None:
    part = landed(tmp_path)
    (tmp_path / "orders-0.jsonl").write_bytes(b"12945")
    assert size_problem(part) is None
    assert "has the SHA-256" in str(content_problem(part))


def test_file_that_is_missing_or_shorter_shows_to_both(tmp_path: Path) -> None:
    part = landed(tmp_path)
    path = tmp_path / "orders-0.jsonl"
    path.write_bytes(b"123")
    assert size_problem(part) == f"{path} has 3 B, published: 5 B"
    assert content_problem(part) == size_problem(part)
    path.unlink()
    assert size_problem(part) == f"{path} is missing"


def test_folder_in_the_way_of_a_file_is_told(tmp_path: Path) -> None:
    part = landed(tmp_path)
    (tmp_path / "orders-0.jsonl").rename(tmp_path / "elsewhere")
    (tmp_path / "orders-0.jsonl").symlink_to("orders-0.jsonl")
    assert "cannot be looked at" in str(size_problem(part))
