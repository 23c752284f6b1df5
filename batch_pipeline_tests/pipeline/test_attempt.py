"""Successful encode steps, with a real inventory and folder."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from batch_pipeline.model.batch import BatchState
from batch_pipeline.model.errors import InvariantError
from batch_pipeline.model.location import to_path
from batch_pipeline.model.schema import Column, ColumnType, RecordSchema
from batch_pipeline.pipeline.attempt import encode
from batch_pipeline_tests.pipeline.attempt_fixture import ID, PRICE, EncodeHarness, misfit


def test_encode_publishes_a_planned_batch(harness: EncodeHarness) -> None:
    ticks = iter(datetime(2026, 1, 31, 12, 0, second, tzinfo=UTC) for second in (10, 13))
    published = encode(harness.context, harness.batch, run_id="run-1", now=lambda: next(ticks))
    manifest = published.manifest
    assert published.seconds == 3
    assert (manifest.batch, manifest.attempt, manifest.generation) == (harness.batch, 1, 1)
    assert (manifest.items, manifest.records_read, manifest.records) == (2, 10, 10)
    assert harness.database.manifests.of_batch(harness.batch) == manifest
    assert [Path(to_path(part.uri)).name for part in manifest.part_files] == harness.parts()
    assert harness.pointers() == ["orders-00000001-00000002.g1.json"]
    assert Path(to_path(published.pointer_uri)).name == harness.pointers()[0]
    assert list(harness.database.manifests.without_pointer("orders")) == []
    assert harness.database.batches.statuses("orders")[0].state is BatchState.PUBLISHED


def test_encode_publishes_even_if_the_manifest_file_name_is_taken(
    harness: EncodeHarness, caplog: pytest.LogCaptureFixture
) -> None:
    """The conflict is logged, and reconcile handles it."""
    name = "orders-00000001-00000002.g1.json"
    taken = Path(to_path(harness.context.stream.storage.root), "manifests", name)
    harness.encoder.script = [lambda: taken.write_text("{}")]
    published = encode(harness.context, harness.batch, run_id="run-1")
    assert harness.database.batches.statuses("orders")[0].state is BatchState.PUBLISHED
    assert "another attempt has its name" in caplog.text
    assert list(harness.database.manifests.without_pointer("orders")) == [published.manifest]
    assert taken.read_text() == "{}"


def test_encode_request_has_the_items_and_the_newest_schema(harness: EncodeHarness) -> None:
    """The stem of the part files identifies the attempt."""
    harness.database.schemas.widen("orders", [ID], text_source=True)
    manifest = harness.encode()
    (request,) = harness.encoder.requests
    assert [item.id for item in request.items] == [1, 2]
    assert request.schema == RecordSchema((ID,))
    token = manifest.token.hex[:8]
    assert request.stem == f"orders-00000001-00000002-a1-{token}"
    assert manifest.schema_version == 1


def test_encode_is_repeated_with_a_wider_schema_on_misfits(harness: EncodeHarness) -> None:
    harness.encoder.script = [{"misfits": (misfit(ID),)}, {"misfits": (misfit(PRICE),)}, {}]
    manifest = harness.encode()
    schemas = [request.schema for request in harness.encoder.requests]
    assert schemas == [RecordSchema(), RecordSchema((ID,)), RecordSchema((ID, PRICE))]
    assert (manifest.schema, manifest.schema_version) == (RecordSchema((ID, PRICE)), 2)
    assert len({request.stem for request in harness.encoder.requests}) == 1


def test_encode_fails_if_the_schema_never_fits(harness: EncodeHarness) -> None:
    harness.encoder.script = [
        {"misfits": (misfit(Column(name=f"c{n}", type=ColumnType.STRING)),)} for n in range(9)
    ]
    with pytest.raises(InvariantError, match="after 5 passes"):
        harness.encode()
    assert len(harness.encoder.requests) == 5
    assert harness.attempts()[0][0] == "failed"
    assert harness.parts() == []


def test_second_encode_adds_a_generation_and_keeps_all_files(harness: EncodeHarness) -> None:
    """Without columns, both have the first schema version."""
    manifests = [harness.encode() for _ in range(2)]
    assert [(one.generation, one.schema_version) for one in manifests] == [(1, 1), (2, 1)]
    assert len(harness.parts()) == len(harness.pointers()) == 2
