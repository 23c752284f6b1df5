"""Changes of a stream's schema while batches are encoded."""

from dataclasses import replace
from typing import Any

import pytest

from batch_pipeline.defs.metadata import batch_metadata
from batch_pipeline.model.encode_request import BadRecord
from batch_pipeline.model.errors import (
    BatchDataError,
    ConfigurationError,
    DatabaseUnreachableError,
)
from batch_pipeline.model.record_rules import (
    RESCUED,
    BadRecordRules,
    Evolution,
    LineageColumn,
    SchemaRules,
)
from batch_pipeline.model.schema import Column, ColumnType, RecordSchema
from batch_pipeline.pipeline.attempt import encode
from batch_pipeline_tests.factories import item_report
from batch_pipeline_tests.pipeline.attempt_fixture import (
    ID,
    LOCATION,
    PRICE,
    UNREACHABLE,
    EncodeHarness,
    encode_error,
    misfit,
)
from batch_pipeline_tests.seeds import execute, query

WHOLE_PRICE = Column(name="price", type=ColumnType.INTEGER)
RESCUED_COLUMN = Column(name=RESCUED, type=ColumnType.STRING)


def set_schema_rules(harness: EncodeHarness, **rules: Any) -> None:
    """Change the schema rules of the stream."""
    stream = replace(harness.context.stream, schema=SchemaRules(**rules))
    harness.context = replace(harness.context, stream=stream)


def create_schema(harness: EncodeHarness, *columns: Column) -> None:
    """Create the first schema version, as a published batch does."""
    harness.database.schemas.widen("orders", columns, text_source=True)
    execute(harness.database, "UPDATE batch_pipeline.job SET publish_count = 1")


def test_schema_changes_are_recorded_with_their_first_record(harness: EncodeHarness) -> None:
    """They are stored in the inventory and shown in the metadata of the asset."""
    create_schema(harness, ID, WHOLE_PRICE)
    note = Column(name="note", type=ColumnType.STRING)
    harness.encoder.script = [{"misfits": (misfit(PRICE), misfit(note, line=None))}, {}]

    published = encode(harness.context, harness.batch, run_id="run-1")

    assert [change.sentence for change in published.schema_changes] == [
        f"`price` from integer to number, first in {LOCATION}, line 3",
        f"added `note` (string), first in {LOCATION}",
    ]
    stored = "SELECT item_id, location, line FROM batch_pipeline.schema_version WHERE version = 2"
    assert query(harness.database, stored) == [(1, LOCATION, 3)]
    facts = (published.manifest, published.pointer_uri, published.seconds)
    assert batch_metadata(*facts, published.schema_changes)["schema"] == (
        f"version 2: `price` from integer to number, first in {LOCATION}, line 3; "
        f"added `note` (string), first in {LOCATION}"
    )
    assert batch_metadata(*facts)["schema"] == "version 2"


def test_lineage_column_that_files_had_before_with_another_type_is_refused(
    harness: EncodeHarness,
) -> None:
    create_schema(harness, ID, Column(name="_item_id", type=ColumnType.STRING))
    stream = replace(harness.context.stream, lineage=(LineageColumn.ITEM_ID,))
    harness.context = replace(harness.context, stream=stream)
    with pytest.raises(ConfigurationError, match=r"adds the column _item_id \(integer\)"):
        encode(harness.context, harness.batch, run_id="run-1")
    assert harness.database.schemas.latest("orders")[0] == 1


@pytest.mark.parametrize("declared", [None, RecordSchema((ID,))])
def test_initial_schema_is_mentioned_by_the_first_batch_only(
    harness: EncodeHarness, declared: RecordSchema | None
) -> None:
    set_schema_rules(harness, declared=declared)
    harness.encoder.script = [{}, {}] if declared else [{"misfits": (misfit(ID),)}, {}, {}]
    texts = []
    for run in ("run-1", "run-2"):
        published = encode(harness.context, harness.batch, run_id=run)
        facts = (published.manifest, published.pointer_uri, published.seconds)
        texts.append(batch_metadata(*facts, published.schema_changes)["schema"])
    assert texts == ["version 1, the initial schema", "version 1"]


@pytest.mark.parametrize(
    ("column", "problem"),
    [
        (PRICE, "column price holds number, schema version 1 has integer"),
        (
            Column(name="note", type=ColumnType.STRING),
            "column note holds string, schema version 1 has no such column",
        ),
    ],
)
def test_evolution_fail_rejects_records_that_do_not_fit(
    harness: EncodeHarness, column: Column, problem: str
) -> None:
    create_schema(harness, ID, WHOLE_PRICE)
    set_schema_rules(harness, evolution=Evolution.FAIL)
    harness.encoder.script = [{"misfits": (misfit(column),), "part_files": ()}]
    harness.encoder.root.mkdir(exist_ok=True)

    error = encode_error(harness, BatchDataError)

    assert str(error).startswith(
        f"orders: {LOCATION}, line 3: {problem}; `schema.evolution` is `fail`"
    )
    assert harness.database.schemas.latest("orders")[0] == 1


def test_evolution_fail_accepts_the_first_type_of_a_null_column(harness: EncodeHarness) -> None:
    create_schema(harness, Column(name="price", type=ColumnType.UNKNOWN))
    set_schema_rules(harness, evolution=Evolution.FAIL)
    harness.encoder.script = [{"misfits": (misfit(PRICE),)}, {}]
    assert harness.encode().schema == RecordSchema((PRICE,))


@pytest.mark.parametrize("evolution", [Evolution.FAIL, Evolution.RESCUE])
def test_first_batch_defines_the_schema_under_every_evolution_rule(
    harness: EncodeHarness, evolution: Evolution
) -> None:
    set_schema_rules(harness, evolution=evolution)
    harness.encoder.script = [{"misfits": (misfit(ID),)}, {}]

    first = harness.encode()
    harness.encode()

    rules = [request.stream.schema.evolution for request in harness.encoder.requests]
    assert rules == [Evolution.ADD, Evolution.ADD, evolution]
    assert [request.sample_records for request in harness.encoder.requests] == [20_000, None, None]
    added = {Evolution.FAIL: (ID,), Evolution.RESCUE: (RESCUED_COLUMN, ID)}[evolution]
    assert first.schema == RecordSchema(added)


@pytest.mark.parametrize("evolution", [Evolution.FAIL, Evolution.RESCUE])
def test_first_batch_defines_the_schema_after_an_attempt_that_failed_behind_its_sample(
    harness: EncodeHarness, evolution: Evolution
) -> None:
    set_schema_rules(harness, evolution=evolution)
    harness.encoder.script = [{"misfits": (misfit(ID),)}, UNREACHABLE]
    with pytest.raises(DatabaseUnreachableError):
        harness.encode()
    harness.encoder.script = [{"misfits": (misfit(PRICE),)}, {}]

    manifest = harness.encode()

    assert {request.stream.schema.evolution for request in harness.encoder.requests} == {
        Evolution.ADD
    }
    assert manifest.schema.columns[-2:] == (ID, PRICE)


def test_declared_schema_is_version_1_and_applies_to_the_first_batch(
    harness: EncodeHarness,
) -> None:
    set_schema_rules(harness, declared=RecordSchema((ID, PRICE)), evolution=Evolution.FAIL)
    manifests = [harness.encode(), harness.encode()]
    assert [manifest.schema_version for manifest in manifests] == [1, 1]
    assert manifests[0].schema == RecordSchema((ID, PRICE))
    assert harness.encoder.requests[0].stream.schema.evolution is Evolution.FAIL


@pytest.mark.parametrize(
    ("rules", "passes"),
    [(BadRecordRules(max_bad_ratio=0.1), 2), (BadRecordRules(), 1)],
    ids=["ratio", "default"],
)
def test_bad_records_in_the_sample_fail_unless_a_ratio_is_allowed(
    harness: EncodeHarness, rules: BadRecordRules, passes: int
) -> None:
    """Later records may be good, so that the ratio of the whole batch is within the limit."""
    stream = replace(harness.context.stream, on_bad_record=rules)
    harness.context = replace(harness.context, stream=stream)
    items = tuple(item_report(number, written=4, quarantined=1) for number in (1, 2))
    bad = BadRecord(item_id=1, location=LOCATION, line=2, reason="bad")
    harness.encoder.script = [{"misfits": (misfit(ID),), "items": items, "bad_records": (bad,)}, {}]
    if passes == 1:
        with pytest.raises(BatchDataError, match="line 2: bad"):
            harness.encode()
        assert harness.database.schemas.latest("orders")[0] == 0
    else:
        harness.encode()
    assert len(harness.encoder.requests) == passes


def test_ratio_of_bad_records_is_that_of_the_pass_that_counts_all_records(
    harness: EncodeHarness,
) -> None:
    """A pass whose records do not fit the schema counts only the bad ones as read."""
    create_schema(harness, ID)
    stream = replace(harness.context.stream, on_bad_record=BadRecordRules(max_bad_ratio=0.25))
    harness.context = replace(harness.context, stream=stream)
    bad = BadRecord(item_id=1, location=LOCATION, line=2, reason="bad")
    only_bad = tuple(item_report(number, read=1, quarantined=1) for number in (1, 2))
    every = tuple(item_report(number, read=6, written=5, quarantined=1) for number in (1, 2))
    harness.encoder.script = [
        {"misfits": (misfit(PRICE),), "items": only_bad, "bad_records": (bad,)},
        {"items": every, "bad_records": (bad,)},
    ]
    assert harness.encode().records_quarantined == 2


def test_second_pass_of_a_batch_reads_all_records(harness: EncodeHarness) -> None:
    set_schema_rules(harness, sample_records=100)
    harness.encoder.script = [{"misfits": (misfit(ID),)}, {}]
    harness.encode()
    samples = [request.stream.schema.sample_records for request in harness.encoder.requests]
    assert samples == [100, None]
