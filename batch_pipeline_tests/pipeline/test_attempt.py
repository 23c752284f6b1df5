"""The encode step that succeeds: from claim to pointer on a real inventory and folder."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from batch_pipeline.inventory.database import Database
from batch_pipeline.model.batch import BatchState
from batch_pipeline.model.errors import InvariantError
from batch_pipeline.model.item import LandedFile
from batch_pipeline.model.location import to_path
from batch_pipeline.model.schema import Column, ColumnType, RecordSchema
from batch_pipeline.pipeline.attempt import encode
from batch_pipeline_tests.pipeline.attempt_fixture import ID, PRICE, Scene, misfit


def test_encode_of_a_planned_batch_publishes_it(scene: Scene) -> None:
    """Expect manifest, files, pointer and counters, and the time by the clock given."""
    ticks = iter(datetime(2026, 1, 31, 12, 0, second, tzinfo=UTC) for second in (10, 13))
    published = encode(scene.workshop, scene.batch, run_id="run-1", now=lambda: next(ticks))
    manifest = published.manifest
    assert published.seconds == 3
    assert (manifest.batch, manifest.attempt, manifest.generation) == (scene.batch, 1, 1)
    assert (manifest.items, manifest.records_read, manifest.records) == (2, 10, 10)
    assert scene.database.manifests.of_batch(scene.batch) == manifest
    assert [Path(to_path(part.uri)).name for part in manifest.part_files] == scene.parts()
    assert scene.pointers() == ["orders-00000001-00000002.g1.json"]
    assert Path(to_path(published.pointer_uri)).name == scene.pointers()[0]
    assert list(scene.database.manifests.without_pointer("orders")) == []
    assert scene.database.batches.statuses("orders")[0].state is BatchState.PUBLISHED


def test_encode_whose_pointer_file_has_no_room_publishes_all_the_same(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """Expect the batch to be published, the trouble to be told, and reconcile to go on with it."""
    name = "orders-00000001-00000002.g1.json"
    taken = Path(to_path(scene.workshop.stream.storage.root), "manifests", name)
    scene.encoder.script = [lambda: taken.write_text("{}")]  # behind the back of the attempt
    published = encode(scene.workshop, scene.batch, run_id="run-1")
    assert scene.database.batches.statuses("orders")[0].state is BatchState.PUBLISHED
    assert "another attempt has its name" in caplog.text
    assert list(scene.database.manifests.without_pointer("orders")) == [published.manifest]
    assert taken.read_text() == "{}"


def test_encode_asks_for_the_batchs_items_and_the_newest_schema(scene: Scene) -> None:
    """Expect one request with items in id order and a stem that names the attempt."""
    scene.database.schemas.widen("orders", [ID], text_source=True)
    manifest = scene.encode()
    (request,) = scene.encoder.requests
    assert [item.id for item in request.items] == [1, 2]
    assert request.schema == RecordSchema((ID,))
    token = manifest.token.hex[:8]
    assert request.stem == f"orders-00000001-00000002-a1-{token}"
    assert manifest.schema_version == 1


def test_encode_with_misfits_repeats_with_a_wider_schema(scene: Scene) -> None:
    """Expect each round to see what the round before was missing, and the last one to count."""
    scene.encoder.script = [{"misfits": (misfit(ID),)}, {"misfits": (misfit(PRICE),)}, {}]
    manifest = scene.encode()
    schemas = [request.schema for request in scene.encoder.requests]
    assert schemas == [RecordSchema(), RecordSchema((ID,)), RecordSchema((ID, PRICE))]
    assert (manifest.schema, manifest.schema_version) == (RecordSchema((ID, PRICE)), 2)
    assert len({request.stem for request in scene.encoder.requests}) == 1


def test_encode_without_any_column_names_a_schema_version_all_the_same(scene: Scene) -> None:
    """Expect the empty version 1, and no second one for the next attempt."""
    assert [scene.encode().schema_version for _ in range(2)] == [1, 1]


def test_encode_whose_schema_never_settles_fails(scene: Scene) -> None:
    """Expect an encoder that is never content to be stopped after five passes."""
    scene.encoder.script = [
        {"misfits": (misfit(Column(name=f"c{n}", type=ColumnType.STRING)),)} for n in range(9)
    ]
    with pytest.raises(InvariantError, match="after 5 passes"):
        scene.encode()
    assert len(scene.encoder.requests) == 5
    assert scene.attempts()[0][0] == "failed"
    assert scene.parts() == []


def test_encode_again_adds_a_generation_and_overwrites_nothing(scene: Scene) -> None:
    """Expect files and pointers of both generations to be there."""
    first, second = scene.encode(), scene.encode()
    assert (first.generation, second.generation) == (1, 2)
    assert len(scene.parts()) == len(scene.pointers()) == 2


def test_found_file_of_an_item_reaches_the_encoder_unchanged(
    scene: Scene, database: Database
) -> None:
    """Expect a changed file that was accepted to be encoded by its present facts."""
    (first, second) = database.meta_table("orders").items(scene.batch)
    grown: LandedFile = replace(second.file, size_bytes=2**40, etag="v2")
    database.meta_table("orders").register([grown], accept_changed=True)
    scene.encode()
    assert [item.file for item in scene.encoder.requests[0].items] == [first.file, grown]
