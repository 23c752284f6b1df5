"""Published batches of `orders` with real files, and a small program as the target."""

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
    """Return the stream `orders`, without key properties."""
    settings: dict[str, Any] = {"key_properties": (), "storage": Storage(root="file:///batches")}
    return stream(**(settings | overrides))


def publish_file(
    database: Database, batch: Batch, folder: Path, *, generation: int = 1
) -> Manifest:
    """Publish a batch with a file of two records: its first id and the one after it."""
    first_id = batch.id_range.first_id
    path = folder / f"{batch.job}-{first_id}-{generation}.jsonl.gz"
    part = part_of(path, (first_id, first_id + 1))
    reports = (item_report(first_id, read=2, written=2),)
    return publish(database, batch, encoded(str(path), part_files=(part,), items=reports))


def published(database: Database, folder: Path, batches: int = 3) -> Sequence[Batch]:
    """Plan and publish batches of three items."""
    plan = planned(database, batches)
    for batch in plan:
        publish_file(database, batch, folder)
    return plan


def due(database: Database, target: str = "warehouse") -> list[Loading]:
    """Return the pending loads of a target."""
    return list(database.loads.due(orders(), target))


def load_context(database: Database, folder: Path, body: str, **overrides: Any) -> LoadContext:
    """Return the context of loads into a program, in any order of batches."""
    settings: dict[str, Any] = {
        "stream": orders(),
        "target": "warehouse",
        "loads": database.loads,
        "loader": loader(folder, body),
        "problem_of": content_problem,
        "run_id": "load-1",
        "in_order": False,
    }
    return LoadContext(**(settings | overrides))


def outcome_states(outcomes: Sequence[Outcome]) -> list[tuple[str, str]]:
    """Return label and outcome of each batch."""
    return [
        (
            outcome.loading.label,
            "waits" if outcome.waits else "failed" if outcome.loaded is None else "loaded",
        )
        for outcome in outcomes
    ]


def load_due(context: LoadContext) -> list[tuple[str, str]]:
    """Run all pending loads and return label and outcome of each batch."""
    return outcome_states(list(load(context)))


def rows(database: Database) -> list[tuple[Any, ...]]:
    """Return first id of the batch, number, status and run of each load."""
    return query(
        database,
        "SELECT batch.first_id, load.number, load.status, load.run_id "
        "FROM batch_pipeline.load JOIN batch_pipeline.attempt ON attempt.id = load.attempt_id "
        "JOIN batch_pipeline.batch ON batch.id = attempt.batch_id ORDER BY load.id",
    )
