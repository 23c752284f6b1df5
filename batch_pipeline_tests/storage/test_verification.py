"""Verification of published files: sizes, checksums, manifest files."""

import errno
import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from uuid import UUID

import pytest

from batch_pipeline.model.errors import RetryableError
from batch_pipeline.model.location import to_uri
from batch_pipeline.model.manifest import PartFile
from batch_pipeline.model.status import PublishedBatch, RecordCounts
from batch_pipeline.storage import verification
from batch_pipeline.storage.part_storage import manifest_file_text
from batch_pipeline.storage.verification import (
    content_problem,
    manifest_file_problem,
    size_problem,
    verify_contents,
)
from batch_pipeline_tests.factories import manifest, part_file
from batch_pipeline_tests.published_files import described

CHECKS = [size_problem, content_problem, verify_contents]


def publish(folder: Path, data: bytes) -> PartFile:
    """Write a file and return its entry in the manifest."""
    path = folder / "orders-0.jsonl"
    path.write_bytes(data)
    return described(path, 1)


def test_changed_byte_is_found_only_by_reading(tmp_path: Path) -> None:
    part = publish(tmp_path, b"12345")
    assert [check(part) for check in CHECKS] == [None] * 3
    (tmp_path / "orders-0.jsonl").write_bytes(b"12945")
    assert size_problem(part) is None
    changed = hashlib.sha256(b"12945").hexdigest()
    sums = f"{changed[:12]}…, {part.sha256[:12]}… was published"
    expected = f"{tmp_path}/orders-0.jsonl has the SHA-256 {sums}"
    assert content_problem(part) == verify_contents(part) == expected


def test_truncated_missing_or_inaccessible_file_is_found_by_size(tmp_path: Path) -> None:
    part = publish(tmp_path, b"12345")
    path = tmp_path / "orders-0.jsonl"
    path.write_bytes(b"123")
    assert [check(part) for check in CHECKS] == [f"{path} has 3 B, published: 5 B"] * 3
    path.unlink()
    assert [check(part) for check in CHECKS] == [f"{path} is missing"] * 3
    path.symlink_to(path.name)
    assert all("cannot be accessed" in str(check(part)) for check in CHECKS)


def test_file_that_cannot_be_read_is_found_by_reading(tmp_path: Path) -> None:
    part = publish(tmp_path, b"12345")
    (tmp_path / "orders-0.jsonl").unlink()
    (tmp_path / "orders-0.jsonl").mkdir()
    folder = replace(part, size_bytes=(tmp_path / "orders-0.jsonl").stat().st_size)
    assert size_problem(folder) is None
    assert "cannot be read (is a directory)" in str(verify_contents(folder))


def test_outage_of_mounted_file_system_is_not_a_problem_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = publish(tmp_path, b"12345")
    outage = OSError(errno.ESTALE, os.strerror(errno.ESTALE))
    monkeypatch.setattr(os, "stat", Mock(side_effect=outage))
    for check in CHECKS:
        with pytest.raises(RetryableError, match="cannot be read now"):
            check(part)


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


@pytest.mark.parametrize("text", ["", "[" * 100_000])
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
