"""How a stream's schema changes while batches are encoded: added to, refused, rescued, declared."""

from dataclasses import replace
from typing import Any

import pytest

from batch_pipeline.defs.metadata import batch_metadata
from batch_pipeline.model.encode_request import BadRecord
from batch_pipeline.model.errors import BatchDataError, ConfigurationError
from batch_pipeline.model.record_rules import RESCUED, BadRecordRules, Evolution, SchemaRules
from batch_pipeline.model.schema import Column, ColumnType, RecordSchema
from batch_pipeline.pipeline.attempt import encode
from batch_pipeline_tests.factories import item_report
from batch_pipeline_tests.pipeline.attempt_fixture import ID, PLACE, PRICE, Scene, fails, misfit
from batch_pipeline_tests.seeds import query

WHOLE_PRICE = Column(name="price", type=ColumnType.INTEGER)
KEPT = Column(name=RESCUED, type=ColumnType.STRING)


def obey(scene: Scene, **rules: Any) -> None:
    """Let the stream follow other rules."""
    stream = replace(scene.workshop.stream, schema=SchemaRules(**rules))
    scene.workshop = replace(scene.workshop, stream=stream)


def know(scene: Scene, *columns: Column) -> None:
    """Make the first version."""
    scene.database.schemas.widen("orders", columns, text_source=True)


def test_encode_that_widens_the_schema_tells_what_changed(scene: Scene) -> None:
    """Expect each change with its first record, in the inventory and in the asset's metadata."""
    know(scene, ID, WHOLE_PRICE)
    note = Column(name="note", type=ColumnType.STRING)
    scene.encoder.script = [{"misfits": (misfit(PRICE), misfit(note, line=None))}, {}]

    published = encode(scene.workshop, scene.batch, run_id="run-1")

    assert [change.sentence for change in published.schema_changes] == [
        f"`price` from integer to number, first in {PLACE}, line 3",
        f"added `note` (string), first in {PLACE}",
    ]
    kept = "SELECT item_id, location, line FROM batch_pipeline.schema_version WHERE version = 2"
    assert query(scene.database, kept) == [(1, PLACE, 3)]
    place = (published.manifest, published.pointer_uri, published.seconds)
    assert batch_metadata(*place, published.schema_changes)["schema"] == (
        f"version 2: `price` from integer to number, first in {PLACE}, line 3; "
        f"added `note` (string), first in {PLACE}"
    )
    assert batch_metadata(*place)["schema"] == "version 2"
    first = replace(published.manifest, schema_version=1)
    assert batch_metadata(first, *place[1:])["schema"] == "version 1, the initial schema"


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (PRICE, "column price holds number, schema version 1 has integer"),
        (
            Column(name="note", type=ColumnType.STRING),
            "column note holds string, schema version 1 has no such column",
        ),
    ],
)
def test_encode_with_evolution_fail_refuses_what_does_not_fit(
    scene: Scene, column: Column, said: str
) -> None:
    """Expect the first record, both types, the untouched schema and the next step."""
    know(scene, ID, WHOLE_PRICE)
    obey(scene, evolution=Evolution.FAIL)
    scene.encoder.script = [{"misfits": (misfit(column),), "part_files": ()}]
    scene.encoder.root.mkdir(exist_ok=True)

    error = fails(scene, BatchDataError)

    assert str(error).startswith(f"orders: {PLACE}, line 3: {said}; `schema.evolution` is `fail`")
    assert scene.database.schemas.latest("orders")[0] == 1


def test_encode_with_evolution_fail_lets_a_column_of_nulls_take_its_type(scene: Scene) -> None:
    """Expect nothing to be contradicted by the first value of a column."""
    know(scene, Column(name="price", type=ColumnType.UNKNOWN))
    obey(scene, evolution=Evolution.FAIL)
    scene.encoder.script = [{"misfits": (misfit(PRICE),)}, {}]
    assert scene.encode().schema == RecordSchema((PRICE,))


@pytest.mark.parametrize("evolution", [Evolution.FAIL, Evolution.RESCUE])
def test_encode_of_the_first_columns_adds_them_whatever_the_rule(
    scene: Scene, evolution: Evolution
) -> None:
    """Expect the first batch to be where the schema comes from, and the second one to obey."""
    obey(scene, evolution=evolution)
    scene.encoder.script = [{"misfits": (misfit(ID),)}, {}]

    first = scene.encode()
    scene.encode()

    rules = [request.stream.schema.evolution for request in scene.encoder.requests]
    assert rules == [Evolution.ADD, Evolution.ADD, evolution]
    added = {Evolution.FAIL: (ID,), Evolution.RESCUE: (KEPT, ID)}[evolution]
    assert first.schema == RecordSchema(added)


def test_encode_with_a_declared_schema_starts_with_it(scene: Scene) -> None:
    """Expect it to be version 1, to be obeyed from the first batch on, and to stay."""
    obey(scene, declared=RecordSchema((ID, PRICE)), evolution=Evolution.FAIL)
    manifests = [scene.encode(), scene.encode()]
    assert [manifest.schema_version for manifest in manifests] == [1, 1]
    assert manifests[0].schema == RecordSchema((ID, PRICE))
    assert scene.encoder.requests[0].stream.schema.evolution is Evolution.FAIL


def test_encode_with_a_declaration_that_narrows_fails_before_it_reads(scene: Scene) -> None:
    """Expect the operator to be asked, and no file to be read."""
    obey(scene, declared=RecordSchema((PRICE,)))
    scene.encode()
    obey(scene, declared=RecordSchema((WHOLE_PRICE,)))
    with pytest.raises(ConfigurationError, match="price is declared integer"):
        scene.encode()
    assert len(scene.encoder.requests) == 1


def test_first_schema_is_inferred_from_a_sample_and_later_ones_from_all_records(
    scene: Scene,
) -> None:
    scene.encoder.script = [{"misfits": (misfit(ID),)}, {}, {}]
    scene.encode()
    scene.encode()
    assert [request.sample_records for request in scene.encoder.requests] == [20_000, None, None]


@pytest.mark.parametrize(
    ("rules", "passes"),
    [(BadRecordRules(max_bad_ratio=0.1), 2), (BadRecordRules(), 1)],
    ids=["share", "none"],
)
def test_sample_with_bad_records_fails_a_batch_unless_a_share_is_allowed(
    scene: Scene, rules: BadRecordRules, passes: int
) -> None:
    """The records after the sample may be good, so that the share is small enough."""
    stream = replace(scene.workshop.stream, on_bad_record=rules)
    scene.workshop = replace(scene.workshop, stream=stream)
    items = tuple(item_report(number, written=4, quarantined=1) for number in (1, 2))
    bad = BadRecord(item_id=1, location=PLACE, line=2, reason="bad")
    scene.encoder.script = [{"misfits": (misfit(ID),), "items": items, "bad_records": (bad,)}, {}]
    if passes == 1:
        with pytest.raises(BatchDataError, match="line 2: bad"):
            scene.encode()
        assert scene.database.schemas.latest("orders")[0] == 0
    else:
        scene.encode()
    assert len(scene.encoder.requests) == passes


def test_encode_with_a_sample_looks_at_all_records_from_the_second_look_on(scene: Scene) -> None:
    """Expect a sample to save time, never to keep the schema from settling."""
    obey(scene, sample_records=100)
    scene.encoder.script = [{"misfits": (misfit(ID),)}, {}]
    scene.encode()
    samples = [request.stream.schema.sample_records for request in scene.encoder.requests]
    assert samples == [100, None]
