"""What can be wrong with a user's own table, and what becomes of the stream that it feeds."""

from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from batch_pipeline.inventory.database import Database
from batch_pipeline.inventory.meta_tables.sources import MetaSources, UserMetaTable
from batch_pipeline.model.errors import (
    BadWeightError,
    BatchDataError,
    MetaTableError,
    MetaTableRestartedError,
    MetaUnreachableError,
    UnknownMetaTableError,
)
from batch_pipeline.model.filter import parse_filter
from batch_pipeline.model.record_rules import OnBadFile
from batch_pipeline.model.stream import Strategy
from batch_pipeline_tests.factories import limits
from batch_pipeline_tests.inventory.invariants import check_invariants
from batch_pipeline_tests.inventory.meta_tables.user_table_fixture import (
    DATABASES,
    FILES,
    Scene,
    open_scene,
    ranges,
)


@pytest.fixture(params=DATABASES)
def scene(request: pytest.FixtureRequest, database: Database) -> Scene:
    """An empty table in a database of each kind, beside the inventory's."""
    return open_scene(request.param, request.getfixturevalue(request.param), database)


def test_stream_that_was_listed_by_another_table_is_refused(scene: Scene) -> None:
    """Expect an error that names both tables, since their ids have nothing in common."""
    scene.database.batches.plan(scene.database.meta_table("orders"), limits(), drain=True)
    scene.insert(1)
    with pytest.raises(MetaTableError, match=r"listed by batch_pipeline\.item so far, and .* now"):
        scene.plan()


@pytest.mark.parametrize("written", ["relative.csv", "s3://key:hunter2@bucket/x", "", None])
def test_row_without_a_usable_location_fails_its_batch(scene: Scene, written: str | None) -> None:
    """Expect table, id and value in the message, no password, and the neighbours to be read."""
    scene.insert(1, 4)
    scene.insert(2, file_location=written)
    bad, good = scene.plan(max_count=2)
    with pytest.raises(BatchDataError, match="Correct the row and run again") as caught:
        scene.table.items(bad)
    told = str(caught.value)
    assert scene.table.name in told
    assert "(id 2)" in told
    assert str(written or "").partition("key")[0] in told
    assert "hunter2" not in told
    assert [item.id for item in scene.table.items(good)] == [4]


def test_row_without_a_usable_location_can_be_set_aside(scene: Scene) -> None:
    """Expect `on_bad_file: quarantine` to leave the refusal to whoever opens the file."""
    scene.insert(1)
    scene.insert(2, file_location="relative.csv")
    [one] = scene.plan()
    items = replace(scene.table, on_bad_file=OnBadFile.QUARANTINE).items(one)
    assert [item.file.location for item in items] == ["file:///landing/1.csv", "relative.csv"]


@pytest.mark.guarantee("S1")
@pytest.mark.parametrize(
    "written", ["/etc/passwd", "/landing-of-others/2.csv", "s3://bucket/2.csv", "file:///landing"]
)
def test_row_of_a_file_outside_of_the_roots_fails_its_batch(scene: Scene, written: str) -> None:
    """Expect the location, and the key that would let it in, before anything is opened."""
    scene.insert(1)
    scene.insert(2, file_location=written)
    [one] = scene.plan()
    with pytest.raises(
        BatchDataError, match=r"lies outside of `source\.meta_table\.roots`"
    ) as caught:
        scene.table.items(one)
    assert f"the location is {written}, which lies outside" in str(caught.value)
    roots = ("file:///", "s3://bucket")
    items = scene.described(roots=roots).items(one)
    assert [item.id for item in items] == [1, 2]


@pytest.mark.guarantee("S1")
def test_location_that_is_cut_to_be_shown_is_none_any_more(scene: Scene) -> None:
    """Expect what is set aside for its location not to become another file by losing its end."""
    long = f"file:///landing/{'a' * 300}/../../etc/passwd"
    scene.insert(1, file_location=long)
    [one] = scene.plan()
    [item] = replace(scene.table, on_bad_file=OnBadFile.QUARANTINE).items(one)
    assert item.file.location == f"<{long[:300]}>"


def test_refused_weight_stops_planning_right_before_it(scene: Scene) -> None:
    """Expect all rows before it to be planned, then the error, and the rest once it is mended."""
    scene.insert(1, 2, 3, 4, 6)
    scene.insert(5, size_in_bytes=None)
    assert ranges(scene.plan()) == [(1, 3, 3), (4, 4, 1)]
    with pytest.raises(BadWeightError, match="the weight of id 5 is NULL"):
        scene.plan()
    assert ranges(scene.plan(scene.described(on_bad_weight=7))) == [(5, 6, 2)]
    check_invariants(scene.database)


def test_weight_that_went_bad_after_planning_fails_its_batch(scene: Scene) -> None:
    """Expect an error of the batch alone, with the id."""
    scene.insert(1, 2)
    [one] = scene.plan()
    scene.execute("UPDATE files SET size_in_bytes = -1 WHERE id = 2")
    with pytest.raises(BatchDataError, match=r"the weight is -1; .* \(id 2\)"):
        scene.table.items(one)


def test_negative_ids_are_refused_unless_the_filter_hides_them(scene: Scene) -> None:
    """Expect an error that says what to do, and after that batches from 0 on."""
    scene.insert(-3, 0, 2)
    with pytest.raises(MetaTableError, match="the id -3 is negative"):
        scene.plan()
    where = parse_filter([{"column": "id", "operator": ">=", "value": 0}])
    [one] = scene.plan(scene.described(where=where))
    assert one.key == "00000000-00000002"


def test_table_that_starts_again_is_told(scene: Scene) -> None:
    """Expect an error in place of new rows that would never be looked at."""
    scene.insert(1, 2, 3)
    scene.plan()
    if scene.engine.dialect.name == "postgresql":
        scene.execute("SELECT setval(pg_get_serial_sequence('files', 'id'), 3)")
        scene.execute("TRUNCATE files RESTART IDENTITY")
    elif scene.engine.dialect.name == "mysql":
        scene.execute("TRUNCATE files")
    else:
        scene.execute("DELETE FROM files")
        scene.execute("DELETE FROM sqlite_sequence")
    scene.execute("INSERT INTO files (file_location, size_in_bytes) VALUES ('/a.csv', 1)")
    with pytest.raises(MetaTableRestartedError, match="truncated or replaced"):
        scene.plan()


def test_column_that_is_renamed_under_way_is_noticed_at_once(scene: Scene) -> None:
    """Expect the table to be opened anew, and the missing column to be named."""
    scene.insert(1)
    [one] = scene.plan()
    scene.execute("ALTER TABLE files RENAME COLUMN file_location TO place")
    with pytest.raises(MetaTableError, match="no column 'file_location'"):
        scene.table.items(one)
    renamed = scene.described(item="place")
    assert [item.id for item in renamed.items(one)] == [1]


@pytest.mark.parametrize(
    ("changes", "error", "told"),
    [
        ({"table": "fils"}, UnknownMetaTableError, "No table or view"),
        ({"uid": "no"}, MetaTableError, "has no column 'no'"),
        ({"imported": "no", "ceiling": Strategy.SETTLE}, MetaTableError, "has no column 'no'"),
        ({"uid": "size_in_bytes"}, MetaTableError, "cannot be the uid"),
    ],
)
def test_table_that_cannot_be_used_as_described_is_refused(
    scene: Scene, changes: dict[str, Any], error: type[Exception], told: str
) -> None:
    """Expect an error before anything is planned."""
    with pytest.raises(error, match=told):
        scene.plan(scene.described(**changes))
    assert scene.database.batches.statuses("orders") == []


def test_ceiling_that_the_database_does_not_have_is_refused(scene: Scene) -> None:
    """Expect the way of another database not to be taken."""
    is_sqlite = scene.engine.dialect.name == "sqlite"
    wrong = Strategy.LOCKS if is_sqlite else Strategy.SQLITE
    with pytest.raises(MetaTableError, match="Leave the strategy out"):
        scene.plan(scene.described(ceiling=wrong))


def test_database_that_does_not_answer_is_told_and_nothing_is_burnt(
    database: Database, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Expect an error that can be waited out, and no job."""
    folder = tmp_path_factory.mktemp("gone")
    engine = sa.create_engine(f"sqlite:///file:{folder}/no.db?mode=rw&uri=true")
    table = UserMetaTable(
        inventory=database.engine,
        sources=MetaSources(engine, database.engine),
        stream="orders",
        table_source=FILES,
    )
    with pytest.raises(MetaUnreachableError):
        database.batches.plan(table, limits(), drain=True)
    assert database.jobs.jobs() == []
