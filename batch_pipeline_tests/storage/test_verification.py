"""Verification of published files: checksums, record counts, damage, manifest files."""

import gzip
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from pyarrow import feather, orc

from batch_pipeline.model.location import to_uri
from batch_pipeline.model.manifest import PartFile
from batch_pipeline.model.status import PublishedBatch, RecordCounts
from batch_pipeline.storage import verification
from batch_pipeline.storage.part_storage import manifest_file_text
from batch_pipeline.storage.verification import (
    content_problem,
    manifest_file_problem,
    read_contents,
    size_problem,
    verify_contents,
)
from batch_pipeline_tests.factories import manifest, part_file

LINES = b'{"id":1}\n{"id":2}\n{"id":3}\n'


def gzipped(lines: bytes) -> bytes:
    """Compress reproducibly with gzip."""
    return gzip.compress(lines, mtime=0)


def table_file(write: Callable[[pa.Table, pa.NativeFile], object]) -> bytes:
    """Return a file of three rows."""
    sink = pa.BufferOutputStream()
    write(pa.table({"id": [1, 2, 3]}), sink)
    return bytes(sink.getvalue())


DATA_BY_SUFFIX = {
    "jsonl": LINES,
    "jsonl.gz": gzipped(LINES),
    "jsonl.zst": zstandard.ZstdCompressor(write_checksum=True).compress(LINES),
    "parquet": table_file(pq.write_table),
    "arrow": table_file(lambda table, sink: feather.write_feather(table, sink, chunksize=2)),
    "orc": table_file(orc.write_table),
}


def publish(folder: Path, suffix: str, data: bytes, records: int = 3) -> PartFile:
    """Write a file and return its entry in the manifest."""
    path = folder / f"orders-0.{suffix}"
    path.write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    return PartFile(uri=to_uri(path), records=records, size_bytes=len(data), sha256=digest)


def flip_bit(data: bytes, index: int) -> bytes:
    return data[:index] + bytes([data[index] ^ 1]) + data[index + 1 :]


@pytest.mark.parametrize("suffix", DATA_BY_SUFFIX)
def test_contents_of_each_encoding_are_verified(suffix: str, tmp_path: Path) -> None:
    data = DATA_BY_SUFFIX[suffix]
    part = publish(tmp_path, suffix, data)
    found = read_contents(part.uri)
    assert (found.records, found.damage) == (3, None)
    assert found.sha256 == part.sha256
    assert verify_contents(part) is None
    (tmp_path / f"orders-0.{suffix}").write_bytes(flip_bit(data, len(data) // 2))
    problem = str(verify_contents(part))
    assert problem.startswith(f"{tmp_path}/orders-0.{suffix} has the SHA-256 ")
    assert f"{part.sha256[:12]}… was published" in problem


def test_damage_before_publishing_is_found_by_reading(tmp_path: Path) -> None:
    data = gzipped(LINES)
    part = publish(tmp_path, "jsonl.gz", flip_bit(data, len(data) - 8))
    problem = str(verify_contents(part))
    assert problem.startswith(f"{tmp_path}/orders-0.jsonl.gz cannot be read to its end (")


def test_truncated_file_is_found_by_reading(tmp_path: Path) -> None:
    for suffix in ("jsonl.gz", "parquet", "arrow", "orc"):
        data = DATA_BY_SUFFIX[suffix]
        truncated = data[: len(data) // 2]
        found = read_contents(publish(tmp_path, suffix, truncated).uri)
        assert (found.records, bool(found.damage)) == (None, True), suffix
        assert found.sha256 == hashlib.sha256(truncated).hexdigest()


def test_missing_line_is_found_by_record_count(tmp_path: Path) -> None:
    two = gzipped(LINES[9:])
    expected = "has a record count of 2, published: 3"
    part = publish(tmp_path, "jsonl.gz", two)
    assert verify_contents(part) == f"{tmp_path}/orders-0.jsonl.gz {expected}"
    before = publish(tmp_path, "jsonl.gz", gzipped(b'{"id":9}\n{"id":8}\n{"id":7}\n'))
    (tmp_path / "orders-0.jsonl.gz").write_bytes(two.ljust(before.size_bytes, b"\0"))
    assert str(verify_contents(before)).endswith(f"was published, and {expected}")


def test_last_line_without_line_end_is_counted(tmp_path: Path) -> None:
    assert read_contents(publish(tmp_path, "jsonl", LINES[:-1]).uri).records == 3
    assert read_contents(publish(tmp_path, "jsonl", b"").uri).records == 0


def test_concatenated_members_are_one_file(tmp_path: Path) -> None:
    assert read_contents(publish(tmp_path, "jsonl.gz", gzipped(LINES) * 2).uri).records == 6
    frames = DATA_BY_SUFFIX["jsonl.zst"] * 2
    assert read_contents(publish(tmp_path, "jsonl.zst", frames).uri).records == 6


def test_records_of_unknown_suffix_are_not_counted(tmp_path: Path) -> None:
    found = read_contents(publish(tmp_path, "txt", b"abc").uri)
    assert (found.records, found.damage) == (None, None)
    assert found.sha256 == hashlib.sha256(b"abc").hexdigest()


def test_changed_byte_is_found_only_by_reading(tmp_path: Path) -> None:
    part = publish(tmp_path, "jsonl", b"12345")
    assert (size_problem(part), content_problem(part)) == (None, None)
    (tmp_path / "orders-0.jsonl").write_bytes(b"12945")
    assert size_problem(part) is None
    assert "has the SHA-256" in str(content_problem(part))


def test_shorter_missing_or_inaccessible_file_is_found_by_size(tmp_path: Path) -> None:
    part = publish(tmp_path, "jsonl", b"12345")
    path = tmp_path / "orders-0.jsonl"
    path.write_bytes(b"123")
    assert size_problem(part) == f"{path} has 3 B, published: 5 B"
    assert content_problem(part) == size_problem(part)
    path.unlink()
    assert size_problem(part) == f"{path} is missing"
    path.symlink_to(path.name)
    assert "cannot be accessed" in str(size_problem(part))


OTHER = str(UUID(int=7))


@pytest.fixture
def published(tmp_path: Path) -> PublishedBatch:
    """A batch with a part file, a quarantine file and a manifest file."""
    written = manifest(quarantine_files=(part_file("q"),))
    path = tmp_path / "orders.g1.json"
    path.write_text(manifest_file_text(written))
    return PublishedBatch(
        label="b",
        generation=1,
        part_files=written.part_files,
        quarantine_files=written.quarantine_files,
        batch=RecordCounts(read=5, written=5),
        items=RecordCounts(read=5, written=5),
        token=written.token,
        pointer_uri=to_uri(path),
    )


def change_manifest_file(folder: Path, **changed: Any) -> None:
    path = folder / "orders.g1.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))


def test_matching_manifest_file_has_no_problem(published: PublishedBatch, tmp_path: Path) -> None:
    assert manifest_file_problem(published) is None
    files = json.loads((tmp_path / "orders.g1.json").read_text())["part_files"]
    change_manifest_file(tmp_path, added=1, part_files=[{**files[0], "added": 2}])
    assert manifest_file_problem(published) is None


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"token": OTHER}, "belongs to an attempt other than the published one"),
        ({"generation": 2}, "has another generation"),
        ({"part_files": []}, "has other part_files than the inventory"),
        ({"part_files": 7}, "has other part_files than the inventory"),
        ({"part_files": ["a"]}, "has other part_files than the inventory"),
        ({"quarantine_files": []}, "has other quarantine_files than the inventory"),
        ({"records": {"written": 4}}, "has counters that differ from the inventory's"),
        ({"records": 5}, "has counters that differ from the inventory's"),
    ],
)
def test_manifest_file_that_differs_from_inventory_is_reported(
    published: PublishedBatch, tmp_path: Path, changed: dict[str, Any], expected: str
) -> None:
    change_manifest_file(tmp_path, **changed)
    assert manifest_file_problem(published) == f"{tmp_path}/orders.g1.json {expected}"


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000])
def test_manifest_file_that_is_not_json_is_reported(
    published: PublishedBatch, tmp_path: Path, text: str
) -> None:
    (tmp_path / "orders.g1.json").write_text(text)
    assert manifest_file_problem(published) == f"{tmp_path}/orders.g1.json is not JSON"


def test_missing_or_unwritten_manifest_file_is_reported(
    published: PublishedBatch, tmp_path: Path
) -> None:
    (tmp_path / "orders.g1.json").unlink()
    assert manifest_file_problem(published) == f"{tmp_path}/orders.g1.json is missing"
    unwritten = PublishedBatch(
        label="b",
        generation=1,
        part_files=(),
        quarantine_files=(),
        batch=RecordCounts(),
        items=RecordCounts(),
    )
    assert "`batch-pipeline reconcile` writes it" in str(manifest_file_problem(unwritten))


def test_oversized_manifest_file_is_not_read_completely(
    published: PublishedBatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "_MAX_REST_BYTES", 0)
    (tmp_path / "orders.g1.json").write_text(" " * (2 * 2**13 + 1))
    assert "has more than 16,384 bytes" in str(manifest_file_problem(published))
