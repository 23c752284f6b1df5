"""Published batches of `orders` with real files, and a target that is a small program."""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from batch_pipeline.inventory.database import Database
from batch_pipeline.model.batch import Batch
from batch_pipeline.model.load import Loading
from batch_pipeline.model.manifest import Manifest
from batch_pipeline.model.stream import Storage, Stream
from batch_pipeline.pipeline.load import LoadContext, Outcome, load
from batch_pipeline.storage.verification import content_problem
from batch_pipeline_tests.factories import encoded, item_report, stream
from batch_pipeline_tests.load.target_scripts import loader, part_of
from batch_pipeline_tests.seeds import planned, publish, query

LEASE = timedelta(minutes=5)
FIRST, SECOND, THIRD = ("00000001-00000003", "00000004-00000006", "00000007-00000009")


def orders(**overrides: Any) -> Stream:
    """The stream `orders`, whose records have no key."""
    facts: dict[str, Any] = {"key_properties": (), "storage": Storage(root="file:///batches")}
    return stream(**(facts | overrides))


def publish_file(database: Database, one: Batch, folder: Path, *, generation: int = 1) -> Manifest:
    """Publish a batch with a file of two records: its first id and the one after it."""
    first_id = one.id_range.first_id
    path = folder / f"{one.job}-{first_id}-{generation}.jsonl.gz"
    part = part_of(path, (first_id, first_id + 1))
    reports = (item_report(first_id, read=2, written=2),)
    return publish(database, one, encoded(str(path), part_files=(part,), items=reports))


def published(database: Database, folder: Path, batches: int = 3) -> Sequence[Batch]:
    """Plan and publish so many batches of three items."""
    found = planned(database, batches)
    for one in found:
        publish_file(database, one, folder)
    return found


def due(database: Database, target: str = "warehouse") -> list[Loading]:
    """What the target lacks."""
    return list(database.loads.due(orders(), target))


def dock(database: Database, folder: Path, body: str, **overrides: Any) -> LoadContext:
    """A target that is a program; batches need not come in order."""
    facts: dict[str, Any] = {
        "stream": orders(),
        "target": "warehouse",
        "loads": database.loads,
        "loader": loader(folder, body),
        "problem_of": content_problem,
        "run_id": "load-1",
        "in_order": False,
    }
    return LoadContext(**(facts | overrides))


def settled(outcomes: Sequence[Outcome]) -> list[tuple[str, str]]:
    """What came of each batch, in a word."""
    return [
        (one.loading.label, "waits" if one.waits else "failed" if one.loaded is None else "loaded")
        for one in outcomes
    ]


def loaded(dock: LoadContext) -> list[tuple[str, str]]:
    """Load what is due and tell what came of it."""
    return settled(list(load(dock)))


def rows(database: Database) -> list[tuple[Any, ...]]:
    """The loads: first id of the batch, number, status, run."""
    return query(
        database,
        "SELECT batch.first_id, load.number, load.status, load.run_id "
        "FROM batch_pipeline.load JOIN batch_pipeline.attempt ON attempt.id = load.attempt_id "
        "JOIN batch_pipeline.batch ON batch.id = attempt.batch_id ORDER BY load.id",
    )
