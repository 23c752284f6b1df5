"""A home of release 0.1.0: inventory, storage, Dagster's partitions and a tap's STATE.

`data/home_0_1_0` was written by the commands of that release, with its PostgreSQL 18 dumped by
`pg_dump --inserts --no-owner --no-privileges`, comments removed, and all dates moved to 2026-01-31.
Dagster's tables contain only partitions and the materializations of batches.

- `orders`: files 1 to 7 in pairs, csv to jsonl, loaded into the table `sales.orders`. Batch 1-2 has
  two generations, 3-4 a quarantined record, 5-6 failed and was split (superseded), 7 is planned.
  The backfill `2023` has items 1 to 3.
- `invoices`: rows 1, 2, 3 and 5 of the user's table `ops.files`, jsonl to parquet; row 4 arrived
  late and is a batch of the job `invoices.late`.
- `state.json`: the last STATE of the tap.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import psycopg
from click.testing import Result

from batch_pipeline.app import Pipeline
from batch_pipeline.cli.tap import BatchPipelineTap
from batch_pipeline.defs.build import build_definitions
from batch_pipeline.defs.instance.dagster_home import open_instance
from batch_pipeline_tests.cli.commands import invoke
from batch_pipeline_tests.factories import environment_of
from batch_pipeline_tests.regression.snapshots import DATA
from batch_pipeline_tests.singer.tap.tap_fixture import printed, signals_restored

_SOURCE = DATA / "home_0_1_0"
_OLD_FOLDER = "/srv/release-0.1.0"  # its folder in that release
_DUMP = "database.sql"
_LANDED_AT = 1_750_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """The restored home, and commands that run on it in this process.

    Its variables must also be set in the process.
    """

    folder: Path
    url: str
    environment: Mapping[str, str]

    def run(self, *words: str) -> Result:
        """Run a command."""
        return invoke(*words)

    def run_ok(self, *words: str) -> str:
        """Run a command, assert that it succeeds, and return its output."""
        result = self.run(*words)
        assert result.exit_code == 0, (words, result.output, result.exception)
        return result.stdout

    def json(self, *words: str) -> Any:
        """Run a command with `--json` and return the parsed output."""
        result = self.run(*words, "--json")
        assert result.stdout, (words, result.output, result.exception)
        return json.loads(result.stdout)

    def land_order(self, number: int, content: bytes | None = None) -> None:
        """Land a file of `orders`, with three records unless content is given."""
        lines = b"".join(b"%d%d,Bern,%d.50\n" % (number, n, n) for n in (1, 2, 3))
        path = self.folder / f"landing/orders/orders-{number}.csv"
        path.write_bytes(content or b"order_id,city,price\n" + lines)
        os.utime(path, (_LANDED_AT, _LANDED_AT))

    def land_invoice(self, number: int) -> None:
        """Write a file of `invoices` with two records and insert its row."""
        records = [{"id": number * 10 + n, "total": n / 4, "lines": [n]} for n in (1, 2)]
        path = self.folder / f"landing/invoices/invoice-{number}.jsonl"
        path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
        row = (number, str(path), path.stat().st_size)
        self.query(
            "SELECT setval('ops.files_id_seq', greatest(%s, last_value)) FROM ops.files_id_seq",
            number,
        )
        self.query("INSERT INTO ops.files VALUES (%s, %s, %s) RETURNING id", *row)

    def query(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Execute a statement and return its rows."""
        with psycopg.connect(self.url) as connection:
            return connection.execute(statement.encode(), values).fetchall()

    def tap(self, state: Any = None, **config: Any) -> list[dict[str, Any]]:
        """Run the tap with a STATE and return its messages."""
        with signals_restored():
            tap = BatchPipelineTap(config=config, state=state or {})
            return [json.loads(line) for line in printed(tap)]

    def old_state(self) -> Any:
        """Return the last STATE of the tap of release 0.1.0."""
        return json.loads((self.folder / "state.json").read_text())

    def manifest_files(self) -> list[Path]:
        """Return the manifest files of all streams by name."""
        return sorted((self.folder / "batches").glob("*/manifests/*.json"))

    @contextmanager
    def pipeline(self) -> Iterator[Pipeline]:
        """Open the pipeline of the home."""
        with closing(Pipeline.from_environment(self.environment)) as pipeline:
            yield pipeline

    @contextmanager
    def dagster(self) -> Iterator[tuple[dg.DagsterInstance, dg.Definitions]]:
        """Open Dagster's instance and definitions of the home."""
        with self.pipeline() as pipeline, open_instance(pipeline.home) as instance:
            yield instance, build_definitions(self.folder / "streams")


def restore(folder: Path, url: str) -> Home:
    """Restore the files into a new folder and the dump into an empty database."""
    shutil.copytree(_SOURCE, folder, ignore=shutil.ignore_patterns(_DUMP))
    for path in (*folder.glob("streams/*/defs.yaml"), *folder.rglob("manifests/*.json")):
        path.write_text(_read_with_folder(path, folder), encoding="utf-8")
    for path in folder.glob("landing/*/*"):
        os.utime(path, (_LANDED_AT, _LANDED_AT))
    restore_database(url, folder)
    environment = {**environment_of(folder, url), "WAREHOUSE_URL": url}
    return Home(folder=folder, url=url, environment=environment)


def restore_database(url: str, folder: Path = Path(_OLD_FOLDER)) -> None:
    """Restore the dump into an empty database; files are expected in the folder."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(_read_with_folder(_SOURCE / _DUMP, folder).encode())


def _read_with_folder(path: Path, folder: Path) -> str:
    return path.read_text(encoding="utf-8").replace(_OLD_FOLDER, str(folder))
