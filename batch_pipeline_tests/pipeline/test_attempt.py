"""Encode steps, failures and schema changes, with a real inventory and folder.

A failing step closes its attempt and deletes its files, and a retry succeeds.
"""

import shutil
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from batch_pipeline.defs.metadata import batch_metadata
from batch_pipeline.inventory.attempts import FencedAttempts
from batch_pipeline.model.batch import Attempt, BatchState
from batch_pipeline.model.encode_request import BadRecord
from batch_pipeline.model.errors import (
    BadFileError,
    BatchDataError,
    ConfigurationError,
    ConflictError,
    DatabaseUnreachableError,
    FencedError,
    InvariantError,
    SourceRefusedError,
    SourceUnavailableError,
    SparkUnavailableError,
    StorageUnavailableError,
    TasksLostError,
)
from batch_pipeline.model.failpoint import VARIABLE
from batch_pipeline.model.location import to_path, to_uri
from batch_pipeline.model.manifest import Manifest
from batch_pipeline.model.record_rules import (
    RESCUED,
    BadFileKind,
    BadFileRules,
    BadRecordRules,
    Evolution,
    LineageColumn,
    OnBadFile,
    SchemaRules,
)
from batch_pipeline.model.schema import Column, ColumnType, Misfit, RecordSchema
from batch_pipeline.pipeline.attempt import encode
from batch_pipeline.storage.part_storage import PartFileStorage
from batch_pipeline_tests.factories import encoded, item_report, part_file
from batch_pipeline_tests.inventory.invariants import check_invariants
from batch_pipeline_tests.pipeline.attempt_fixture import EncodeHarness
from batch_pipeline_tests.seeds import claimed, execute, query

ID = Column(name="id", type=ColumnType.INTEGER)
PRICE = Column(name="price", type=ColumnType.NUMBER)
LOCATION = "file:///landing/orders-1.csv"
UNREACHABLE = DatabaseUnreachableError("db/inventory", "the connection was cut")
WHOLE_PRICE = Column(name="price", type=ColumnType.INTEGER)


@dataclass
class LostReplies:
    """Attempts over an unreliable connection; each count is the number of calls still to fail.

    `publish_before` loses the connection before the commit, `publish_after` after it.
    """

    inner: FencedAttempts
    publish_before: int = 0
    publish_after: int = 0
    failing: int = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def publish(self, *arguments: Any) -> Manifest:
        """Publish and lose the request or the reply."""
        if self.publish_before:
            self.publish_before -= 1
            raise UNREACHABLE
        manifest = self.inner.publish(*arguments)
        if self.publish_after:
            self.publish_after -= 1
            raise UNREACHABLE
        return manifest

    def fail(self, *arguments: Any, **options: Any) -> bool:
        """Close the attempt as failed and lose the request."""
        if self.failing:
            self.failing -= 1
            raise UNREACHABLE
        return self.inner.fail(*arguments, **options)


def misfit(column: Column, *, seen: str = "", line: int | None = 3) -> Misfit:
    """Return a column that does not fit the schema, first seen in item 1."""
    seen = seen or column.type_text
    return Misfit(column=column, item_id=1, location=LOCATION, line=line, seen=seen)


def encode_error(harness: EncodeHarness, error: type[Exception], **changes: Any) -> Exception:
    """Return the error of an encode step that must close its attempt and leave no files."""
    with pytest.raises(error) as caught:
        harness.encode(**changes)
    ((_, reason, generation, number),) = harness.attempts()
    assert reason == str(caught.value)
    assert (generation, number) == (None, None)
    assert (harness.parts(), harness.pointers()) == ([], [])
    return caught.value


def assert_retry_succeeds(harness: EncodeHarness) -> None:
    """Encode again after a failed attempt."""
    manifest = harness.encode()
    assert (manifest.attempt, manifest.generation, manifest.schema_version) == (2, 1, 1)
    assert harness.attempts()[1][2:] == (1, 1)


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


def test_corrupt_file_fails_the_batch_unless_it_is_quarantined(harness: EncodeHarness) -> None:
    good = item_report(1, read=10, written=10)
    reason, kind = "it is no gzip file", BadFileKind.CORRUPT
    bad = item_report(2, read=0, written=0, bad_file=reason, bad_kind=kind)
    harness.encoder.script = [{"items": (good, bad)}] * 2
    error = encode_error(harness, BadFileError)
    assert f"orders-0002.csv: {reason}" in str(error)
    assert harness.database.batches.statuses("orders")[0].state is BatchState.FAILED
    rules = BadFileRules.all(OnBadFile.QUARANTINE)
    manifest = harness.encode(stream=replace(harness.context.stream, on_bad_file=rules))
    assert (manifest.attempt, manifest.items, manifest.records) == (2, 2, 10)
    assert harness.database.history.of_item(harness.batch, 2)[-1].bad_file == reason


def _with_bad_records(count: int) -> dict[str, Any]:
    bad_record = BadRecord(
        item_id=1, location="file:///landing/orders-0001.csv", line=3, reason="2 cells, expected 3"
    )
    items = (item_report(1, read=5 + count, quarantined=count), item_report(2))
    return {"items": items, "bad_records": (bad_record,)}


def test_bad_records_above_the_limit_fail_the_batch(harness: EncodeHarness) -> None:
    rules = BadRecordRules(max_bad_records=3)
    stream = replace(harness.context.stream, on_bad_record=rules)
    harness.encoder.script = [_with_bad_records(4), _with_bad_records(3)]
    error = encode_error(harness, BatchDataError, stream=stream)
    assert "orders-0001.csv, line 3: 2 cells, expected 3. Bad records: 4, 3 allowed" in str(error)
    manifest = harness.encode(stream=stream)
    assert (manifest.attempt, manifest.records_read) == (2, 13)
    assert (manifest.records, manifest.records_quarantined) == (10, 3)


def test_missing_part_file_or_short_quarantine_file_fails_the_attempt(
    harness: EncodeHarness,
) -> None:
    """Executors may have written the file to another disk."""

    def delete_part_file() -> None:
        (path,) = harness.root.glob("*.jsonl.gz")
        path.unlink()

    harness.encoder.script = [delete_part_file]
    error = encode_error(harness, ConfigurationError)
    assert "with 12 B, and from the driver it does not exist. Executors write to" in str(error)
    assert_retry_succeeds(harness)
    short = harness.root / "quarantine/q"
    short.write_bytes(b"1")
    harness.encoder.script = [{"quarantine_files": (part_file(uri=to_uri(short)),)}]
    with pytest.raises(ConfigurationError, match=r"with 100 B, .* it has 1 B\."):
        harness.encode()
    assert harness.attempts()[-1][0] == "failed"


def test_record_counts_that_disagree_fail_the_attempt(harness: EncodeHarness) -> None:
    harness.encoder.script = [{"items": (item_report(1), item_report(2, read=6, written=6))}]
    error = encode_error(harness, InvariantError)
    assert "filtered or quarantined" in str(error)
    assert_retry_succeeds(harness)


@pytest.mark.parametrize("point", ["encode.after_claim", "encode.before_publish"])
def test_failed_encode_can_be_retried(
    harness: EncodeHarness, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """The points are before the items are read and after all files are written."""
    monkeypatch.setenv(VARIABLE, f"{point}=raise")
    error = encode_error(harness, RuntimeError)
    assert str(error) == f"failpoint {point}"
    monkeypatch.delenv(VARIABLE)
    assert_retry_succeeds(harness)


def test_unavailable_spark_or_storage_is_detected_before_the_claim(harness: EncodeHarness) -> None:
    harness.root.write_text("")
    with pytest.raises(StorageUnavailableError):
        harness.encode()
    harness.root.unlink()
    harness.encoder.unavailable = SparkUnavailableError("spark://master", "connection refused")
    with pytest.raises(SparkUnavailableError):
        harness.encode()
    assert harness.attempts() == []


def test_error_is_kept_if_its_files_cannot_be_deleted(harness: EncodeHarness) -> None:
    def lose_storage() -> None:
        shutil.rmtree(harness.root)
        harness.root.write_text("")
        raise StorageUnavailableError(to_uri(harness.root), "no space left on device")

    harness.encoder.script = [lose_storage]
    with pytest.raises(StorageUnavailableError, match="no space left on device"):
        harness.encode()
    ((status, error, *_),) = harness.attempts()
    assert status == "abandoned"  # not a data error
    assert "no space left on device" in error


def test_encode_of_a_running_batch_is_rejected(harness: EncodeHarness) -> None:
    with claimed(harness.database, harness.batch), pytest.raises(ConflictError, match="is running"):
        harness.encode()
    assert harness.encoder.requests == []
    assert harness.attempts() == [("running", None, None, None)]


def _take_over(harness: EncodeHarness) -> Manifest:
    """Let the lease of the running attempt expire, and publish another one."""
    execute(
        harness.database,
        "UPDATE batch_pipeline.attempt SET lease_until = clock_timestamp() - interval '1 second'",
    )
    with claimed(harness.database, harness.batch) as later:
        (harness.root / f"{later.stem}-1.jsonl.gz").write_bytes(b"five records")
        harness.database.schemas.widen("orders", [ID], text_source=True)
        result = encoded(later.stem)
        return harness.database.attempts.publish(later, result, harness.context.stream)


def test_fenced_encode_publishes_nothing_and_deletes_its_files(harness: EncodeHarness) -> None:
    published: list[Manifest] = []
    harness.encoder.script = [lambda: published.append(_take_over(harness))]
    with pytest.raises(FencedError):
        harness.encode()
    assert [row[0] for row in harness.attempts()] == ["abandoned", "succeeded"]
    assert [name.split("-a")[1][0] for name in harness.parts()] == ["2"]
    assert harness.database.manifests.of_batch(harness.batch) == published[0]


def test_encode_fenced_before_its_start_raises_fenced_error(harness: EncodeHarness) -> None:
    """The manifest file of the later attempt is not taken as a sign of a restored inventory."""

    class SlowStorage(PartFileStorage):
        def check_unpointed(self, attempt: Attempt, stream: str) -> None:
            self.point_to(_take_over(harness))
            super().check_unpointed(attempt, stream)

    with pytest.raises(FencedError):
        harness.encode(storage=SlowStorage(harness.context.stream.storage))
    assert [row[0] for row in harness.attempts()] == ["abandoned", "succeeded"]
    assert harness.encoder.requests == []


@pytest.mark.parametrize("lost", ["publish_before", "publish_after"])
def test_publish_with_lost_request_or_reply_counts_once(harness: EncodeHarness, lost: str) -> None:
    manifest = harness.encode(attempts=LostReplies(harness.database.attempts, **{lost: 1}))
    assert harness.attempts() == [("succeeded", None, 1, 1)]
    assert harness.database.manifests.of_batch(harness.batch) == manifest
    assert len(harness.parts()) == len(harness.pointers()) == 1


def test_publish_lost_twice_before_commit_fails_the_attempt(harness: EncodeHarness) -> None:
    attempts = LostReplies(harness.database.attempts, publish_before=2)
    encode_error(harness, DatabaseUnreachableError, attempts=attempts)
    assert_retry_succeeds(harness)


@pytest.mark.parametrize(
    ("lost", "failing", "status"),
    [
        ("publish_after", 0, "succeeded"),
        ("publish_before", 1, "running"),
        ("publish_after", 1, "succeeded"),
    ],
)
def test_publish_that_may_have_been_committed_keeps_its_files(
    harness: EncodeHarness, lost: str, failing: int, status: str
) -> None:
    attempts = LostReplies(harness.database.attempts, failing=failing, **{lost: 2})
    with pytest.raises(DatabaseUnreachableError):
        harness.encode(attempts=attempts)
    assert [row[0] for row in harness.attempts()] == [status]
    assert len(harness.parts()) == 1


def test_encode_without_manifest_file_is_published(
    harness: EncodeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The inventory row is the commit point, not the manifest file."""
    monkeypatch.setenv(VARIABLE, "encode.before_pointer=raise")
    with pytest.raises(RuntimeError, match="failpoint"):
        harness.encode()
    assert harness.attempts() == [("succeeded", None, 1, 1)]
    assert (len(harness.parts()), harness.pointers()) == (1, [])
    assert len(list(harness.database.manifests.without_pointer("orders"))) == 1


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (SparkUnavailableError("the Connect server", "it is gone"), BatchState.INTERRUPTED),
        (SourceUnavailableError("s3://in/a", "it does not answer"), BatchState.INTERRUPTED),
        (SourceRefusedError("s3://in/a", "the store refuses"), BatchState.INTERRUPTED),
        (StorageUnavailableError("s3://out", "it does not answer"), BatchState.INTERRUPTED),
        (KeyboardInterrupt(), BatchState.INTERRUPTED),
        (TasksLostError("local", "Python worker exited unexpectedly"), BatchState.DEAD),
    ],
    ids=["no Spark", "no source", "source refused", "no storage", "interrupted", "crashed"],
)
def test_outages_do_not_count_as_attempts_but_crashes_do(
    harness: EncodeHarness, error: BaseException, state: BatchState
) -> None:
    """Outages never make a batch dead; three crashes of its tasks or three data errors do."""
    for _ in range(4 if state is BatchState.INTERRUPTED else 3):
        harness.encoder.script = [error]
        with pytest.raises(type(error)):
            harness.encode()
    reason = str(error) if isinstance(error, Exception) else "interrupted"
    assert {row[:2] for row in harness.attempts()} == {("abandoned", reason)}
    assert harness.parts() == []
    assert harness.database.batches.statuses("orders")[0].state is state
    check_invariants(harness.database)
    if state is BatchState.INTERRUPTED:
        for _ in range(3):
            harness.encoder.script = [RuntimeError("bad data")]
            with pytest.raises(RuntimeError):
                harness.encode()
        assert harness.database.batches.statuses("orders")[0].state is BatchState.DEAD
        check_invariants(harness.database)


def change_stream(harness: EncodeHarness, **attributes: Any) -> None:
    """Change attributes of the stream."""
    stream = replace(harness.context.stream, **attributes)
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
    change_stream(harness, lineage=(LineageColumn.ITEM_ID,))
    with pytest.raises(ConfigurationError, match=r"adds the column _item_id \(integer\)"):
        encode(harness.context, harness.batch, run_id="run-1")
    assert harness.database.schemas.latest("orders")[0] == 1


@pytest.mark.parametrize("declared", [None, RecordSchema((ID,))])
def test_initial_schema_is_mentioned_by_the_first_batch_only(
    harness: EncodeHarness, declared: RecordSchema | None
) -> None:
    change_stream(harness, schema=SchemaRules(declared=declared))
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
    change_stream(harness, schema=SchemaRules(evolution=Evolution.FAIL))
    harness.encoder.script = [{"misfits": (misfit(column),), "part_files": ()}]
    harness.encoder.root.mkdir(exist_ok=True)

    error = encode_error(harness, BatchDataError)

    assert str(error).startswith(
        f"orders: {LOCATION}, line 3: {problem}; `schema.evolution` is `fail`"
    )
    assert harness.database.schemas.latest("orders")[0] == 1


def test_evolution_fail_accepts_the_first_type_of_a_null_column(harness: EncodeHarness) -> None:
    create_schema(harness, Column(name="price", type=ColumnType.UNKNOWN))
    change_stream(harness, schema=SchemaRules(evolution=Evolution.FAIL))
    harness.encoder.script = [{"misfits": (misfit(PRICE),)}, {}]
    assert harness.encode().schema == RecordSchema((PRICE,))


@pytest.mark.parametrize("evolution", [Evolution.FAIL, Evolution.RESCUE])
def test_first_batch_defines_the_schema_under_every_evolution_rule(
    harness: EncodeHarness, evolution: Evolution
) -> None:
    change_stream(harness, schema=SchemaRules(evolution=evolution))
    harness.encoder.script = [{"misfits": (misfit(ID),)}, {}]

    first = harness.encode()
    harness.encode()

    rules = [request.stream.schema.evolution for request in harness.encoder.requests]
    assert rules == [Evolution.ADD, Evolution.ADD, evolution]
    assert [request.sample_records for request in harness.encoder.requests] == [20_000, None, None]
    added = {
        Evolution.FAIL: (ID,),
        Evolution.RESCUE: (Column(name=RESCUED, type=ColumnType.STRING), ID),
    }[evolution]
    assert first.schema == RecordSchema(added)


@pytest.mark.parametrize("evolution", [Evolution.FAIL, Evolution.RESCUE])
def test_first_batch_defines_the_schema_after_an_attempt_that_failed_behind_its_sample(
    harness: EncodeHarness, evolution: Evolution
) -> None:
    change_stream(harness, schema=SchemaRules(evolution=evolution))
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
    change_stream(
        harness, schema=SchemaRules(declared=RecordSchema((ID, PRICE)), evolution=Evolution.FAIL)
    )
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
    change_stream(harness, on_bad_record=rules)
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
    change_stream(harness, on_bad_record=BadRecordRules(max_bad_ratio=0.25))
    bad = BadRecord(item_id=1, location=LOCATION, line=2, reason="bad")
    only_bad = tuple(item_report(number, read=1, quarantined=1) for number in (1, 2))
    every = tuple(item_report(number, read=6, written=5, quarantined=1) for number in (1, 2))
    harness.encoder.script = [
        {"misfits": (misfit(PRICE),), "items": only_bad, "bad_records": (bad,)},
        {"items": every, "bad_records": (bad,)},
    ]
    assert harness.encode().records_quarantined == 2


def test_second_pass_of_a_batch_reads_all_records(harness: EncodeHarness) -> None:
    change_stream(harness, schema=SchemaRules(sample_records=100))
    harness.encoder.script = [{"misfits": (misfit(ID),)}, {}]
    harness.encode()
    samples = [request.stream.schema.sample_records for request in harness.encoder.requests]
    assert samples == [100, None]
