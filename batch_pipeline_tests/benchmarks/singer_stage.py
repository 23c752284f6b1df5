"""What the ways from records to a Postgres table stand on: databases, expectations, the server."""

import gzip
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import psycopg
from psycopg import sql

from batch_pipeline_tests.benchmarks import infinity_records
from batch_pipeline_tests.benchmarks.encode_workload import Made, Source, Workload, made
from batch_pipeline_tests.benchmarks.singer_runs import WayFailedError
from batch_pipeline_tests.benchmarks.wide_records import CHECKED

FILES_TEXT = "attribute_005"  # a text column of the files


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a table must hold in the end: of the record with the highest id also a text."""

    records: int
    sum_of_integers: int
    last_text: str
    integer_column: str
    text_column: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """An empty folder and an empty database for one run of a way."""

    url: str
    folder: Path
    cache: Path
    records: int
    files: int

    def made(self, source: Source) -> Made:
        """Give the source files of this size."""
        return made(Workload(source=source, records=self.records, files=self.files), self.cache)

    @property
    def environment(self) -> dict[str, str]:
        """Give this environment without what would lead programs to the project's packages."""
        strange = ("VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT")
        clean = {name: text for name, text in os.environ.items() if name not in strange}
        return {**clean, "PYTHONWARNINGS": "ignore"}

    def check(self, table: str, expected: Expected) -> int:
        """Count the rows of `schema.table` after having compared what is in them.

        Raises:
            WayFailedError: something else is there than was sent.
        """
        statement = sql.SQL(
            "SELECT count(*), count(DISTINCT id), sum({integer})::bigint, "
            "max({text}) FILTER (WHERE id = {last}) FROM {table}"
        ).format(
            integer=sql.Identifier(expected.integer_column),
            text=sql.Identifier(expected.text_column),
            last=sql.Literal(expected.records),
            table=sql.Identifier(*table.split(".")),
        )
        with psycopg.connect(self.url) as connection:
            found = connection.execute(statement).fetchone()
        wanted = (expected.records, expected.records, expected.sum_of_integers, expected.last_text)
        if found != wanted:
            raise WayFailedError(f"the table has {found}, not {wanted}")
        return expected.records


def expected_of_tap(records: int, cache: Path) -> Expected:
    """Tell what the tap's records come to; they are generated for that once."""
    path = cache / f"infinity-{records}.json"
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
        total, text = 0, ""
        for record in infinity_records.records(records):
            total += record[infinity_records.CHECKED]
            text = record[infinity_records.TEXT]
        path.write_text(json.dumps([total, text]))
    total, text = json.loads(path.read_text())
    return Expected(
        records=records,
        sum_of_integers=total,
        last_text=text,
        integer_column=infinity_records.CHECKED,
        text_column=infinity_records.TEXT,
    )


def expected_of_files(lines: Made) -> Expected:
    """Tell what the records of files come to."""
    with gzip.open(lines.paths[-1], "rb") as file:
        *_, last = file
    return Expected(
        records=lines.facts.records,
        sum_of_integers=lines.facts.sum_of_integers,
        last_text=json.loads(last)[FILES_TEXT],
        integer_column=CHECKED,
        text_column=FILES_TEXT,
    )


@contextmanager
def database(server_url: str, name: str) -> Iterator[str]:
    """Make an empty database and give its URL; what was written before is flushed by then."""
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        connection.execute("CHECKPOINT")
    try:
        yield server_url.replace("/postgres?", f"/{name}?")
    finally:
        with psycopg.connect(server_url, autocommit=True) as connection:
            drop = sql.SQL("DROP DATABASE {} WITH (FORCE)")
            connection.execute(drop.format(sql.Identifier(name)))


def server_seconds(server_url: str) -> float:
    """Give the processor seconds of a server so far, ended processes of it included."""
    with psycopg.connect(server_url) as connection:
        parent = psutil.Process(connection.info.backend_pid).parent()
    if parent is None:
        return 0.0
    times = parent.cpu_times()
    seconds = times.user + times.system + times.children_user + times.children_system
    for child in parent.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            child_times = child.cpu_times()
            seconds += child_times.user + child_times.system
    return float(seconds)
