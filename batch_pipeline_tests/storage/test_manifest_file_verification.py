"""Looking at manifest files: each difference to the inventory is told with the file's name."""

import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from batch_pipeline.model.location import to_uri
from batch_pipeline.model.published import PublishedBatch, RecordCounts
from batch_pipeline.storage import verification
from batch_pipeline.storage.part_storage import manifest_file_text
from batch_pipeline.storage.verification import manifest_file_problem
from batch_pipeline_tests.factories import manifest, part_file

OTHER = str(UUID(int=7))


@pytest.fixture
def one(tmp_path: Path) -> PublishedBatch:
    """A batch of one part file and one quarantine file, whose manifest file is there."""
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


def rewrite(folder: Path, **changed: Any) -> None:
    """Change keys of the manifest file."""
    path = folder / "orders.g1.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))


def test_pointer_file_that_says_what_the_inventory_says_is_no_problem(
    one: PublishedBatch, tmp_path: Path
) -> None:
    assert manifest_file_problem(one) is None
    files = json.loads((tmp_path / "orders.g1.json").read_text())["part_files"]
    rewrite(tmp_path, added=1, part_files=[{**files[0], "added": 2}])
    assert manifest_file_problem(one) is None


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"token": OTHER}, "belongs to another attempt than the published one"),
        ({"generation": 2}, "has another generation"),
        ({"part_files": []}, "has other part_files than the inventory"),
        ({"part_files": 7}, "has other part_files than the inventory"),
        ({"part_files": ["a"]}, "has other part_files than the inventory"),
        ({"quarantine_files": []}, "has other quarantine_files than the inventory"),
        ({"records": {"written": 4}}, "has other counters than the inventory"),
        ({"records": 5}, "has other counters than the inventory"),
    ],
)
def test_difference_to_the_inventory_is_told(
    one: PublishedBatch, tmp_path: Path, changed: dict[str, Any], said: str
) -> None:
    rewrite(tmp_path, **changed)
    assert manifest_file_problem(one) == f"{tmp_path}/orders.g1.json {said}"


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000])
def test_text_that_is_no_json_is_told(one: PublishedBatch, tmp_path: Path, text: str) -> None:
    (tmp_path / "orders.g1.json").write_text(text)
    assert manifest_file_problem(one) == f"{tmp_path}/orders.g1.json is not JSON"


def test_pointer_file_that_is_gone_or_was_never_written_is_told(
    one: PublishedBatch, tmp_path: Path
) -> None:
    (tmp_path / "orders.g1.json").unlink()
    assert manifest_file_problem(one) == f"{tmp_path}/orders.g1.json is missing"
    unwritten = PublishedBatch(
        label="b",
        generation=1,
        part_files=(),
        quarantine_files=(),
        batch=RecordCounts(),
        items=RecordCounts(),
    )
    assert "`batch-pipeline reconcile` writes it" in str(manifest_file_problem(unwritten))


def test_pointer_file_without_end_is_not_read_whole(
    one: PublishedBatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "_MAX_REST_BYTES", 0)
    (tmp_path / "orders.g1.json").write_text(" " * (2 * 2**13 + 1))
    assert "has more than 16,384 bytes" in str(manifest_file_problem(one))
