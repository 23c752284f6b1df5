"""A stream on a user's table, in two kinds of database: what the tests of it start from."""

from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from batch_pipeline.inventory.database import Database
from batch_pipeline.inventory.meta_tables.sources import MetaSources, UserMetaTable
from batch_pipeline.model.batch import Batch
from batch_pipeline.model.stream import TableSource
from batch_pipeline_tests.factories import encoded, item_report, limits, stream
from batch_pipeline_tests.inventory.meta_tables.user_tables import CREATE_FILES, MARIADB, execute
from batch_pipeline_tests.seeds import claimed

DATABASES = ["postgres", "sqlite", *(["mariadb"] if MARIADB else [])]
FILES = TableSource(
    table="files",
    roots=("file:///landing", "s3://bucket/in"),
    uid="id",
    item="file_location",
    weight="size_in_bytes",
)


@dataclass
class Scene:
    """An inventory, a user's database, and the table of the stream `orders` there."""

    database: Database
    engine: sa.Engine
    table: UserMetaTable

    def described(self, **changes: Any) -> UserMetaTable:
        """Give the table as another stream file describes it."""
        return replace(self.table, table_source=replace(self.table.table_source, **changes))

    def insert(self, *ids: int, **values: Any) -> None:
        """Insert rows of 10 bytes whose files are named after their ids."""
        table = self.table.table_source.table
        for uid in ids:
            row = {"id": uid, "file_location": f"/landing/{uid}.csv", "size_in_bytes": 10} | values
            columns, marks = ", ".join(row), ", ".join(f":{name}" for name in row)
            execute(self.engine, f"INSERT INTO {table} ({columns}) VALUES ({marks})", **row)  # noqa: S608 - names of this test

    def execute(self, statement: str) -> None:
        """Run a statement in the user's database; `files` stands for the table."""
        execute(self.engine, statement.replace("files", self.table.table_source.table))

    def plan(self, table: UserMetaTable | None = None, **bounds: Any) -> list[Batch]:
        """Plan with three items a batch, and give the new batches."""
        done = self.database.batches.plan(
            table or self.table, limits(**({"max_count": 3} | bounds)), drain=True
        )
        if done.ids is None:
            return []
        return [one.batch for one in self.database.batches.statuses("orders", done.ids)]

    def publish(self, one: Batch) -> list[int]:
        """Publish what a batch has, and give the ids of its items."""
        items = self.table.items(one)
        with claimed(self.database, one) as attempt:
            reports = tuple(item_report(item.id) for item in items)
            what = replace(
                encoded(attempt.stem, items=reports), weight=sum(i.weight for i in items)
            )
            self.database.attempts.publish(attempt, what, stream())
        return [item.id for item in items]


def ranges(batches: list[Batch]) -> list[tuple[int, int, int]]:
    """Give first id, last id and number of items of batches."""
    return [(one.id_range.first_id, one.id_range.last_id, one.count) for one in batches]


def open_scene(kind: str, engine: sa.Engine, database: Database) -> Scene:
    """Make an empty table on Postgres; the others have one."""
    described = FILES
    if kind == "postgres":
        execute(engine, CREATE_FILES)
        described = replace(FILES, table="ops.files")
    sources = MetaSources(engine, database.engine)
    table = UserMetaTable(
        inventory=database.engine, sources=sources, stream="orders", table_source=described
    )
    return Scene(database, engine, table)
