"""Bringing inventory and storage back in step after crashes."""

import json
import signal
from pathlib import Path

import pytest

from batch_pipeline.domain.batch import BatchState
from batch_pipeline.domain.location import to_path, to_uri
from batch_pipeline.domain.stream import Storage
from batch_pipeline.files.storage import FolderStorage
from batch_pipeline.inventory.database import Database
from batch_pipeline.steps.reconcile import Reconciled, reconcile
from batch_pipeline_tests.concurrency import eventually, python, said
from batch_pipeline_tests.integration.seeds import (
    CLAIM_AND_WAIT,
    claimed,
    expire,
    planned,
    publish,
    query,
)


@pytest.fixture
def storage(tmp_path: Path) -> FolderStorage:
    """A storage of its own."""
    return FolderStorage(Storage(root=to_uri(tmp_path)))


def _reconcile(database: Database, storage: FolderStorage, job: str = "orders") -> Reconciled:
    return reconcile(job, database.attempts, database.manifests, storage)


def test_reconcile_with_nothing_open_does_nothing(
    database: Database, storage: FolderStorage
) -> None:
    """Expect no work before the first batch, and none of planned ones."""
    assert _reconcile(database, storage) == Reconciled(attempts=0, pointers=0)
    planned(database)
    assert _reconcile(database, storage) == Reconciled(attempts=0, pointers=0)


def test_reconcile_closes_the_attempt_of_a_killed_process(
    database: Database, database_url: str, storage: FolderStorage
) -> None:
    """Expect the batch of the dead to be interrupted, which makes it due again."""
    (one,) = planned(database)
    with python(CLAIM_AND_WAIT, database_url, one.key) as child:
        said(child)
        child.send_signal(signal.SIGKILL)
        child.wait()
    eventually(lambda: _reconcile(database, storage) == Reconciled(attempts=1, pointers=0))
    status = database.batches.statuses("orders")[0]
    assert (status.state, status.error) == (
        BatchState.INTERRUPTED,
        "its process ended without a word",
    )


def test_reconcile_beside_a_live_attempt_leaves_it_alone(
    database: Database, storage: FolderStorage
) -> None:
    """Expect only the attempt whose lease ran out to be closed."""
    first, second = planned(database, 2)
    with claimed(database, first), claimed(database, second) as stuck:
        assert _reconcile(database, storage) == Reconciled(attempts=0, pointers=0)
        expire(database, stuck)
        assert _reconcile(database, storage, "clicks") == Reconciled(attempts=0, pointers=0)
        assert _reconcile(database, storage) == Reconciled(attempts=1, pointers=0)
    states = [status.state for status in database.batches.statuses("orders")]
    assert states == [BatchState.RUNNING, BatchState.INTERRUPTED]


def test_reconcile_writes_the_pointers_that_a_crash_left_out(
    database: Database, storage: FolderStorage
) -> None:
    """Expect each missing pointer once, remembered in the inventory, also of old generations."""
    first, second = planned(database, 2)
    manifests = [publish(database, one) for one in (first, second, first)]
    assert _reconcile(database, storage) == Reconciled(attempts=0, pointers=3)
    uris = query(database, "SELECT pointer_uri FROM batch_pipeline.attempt ORDER BY publish_number")
    written = [json.loads(Path(to_path(uri)).read_text()) for (uri,) in uris]
    assert written == [manifest.to_json() for manifest in manifests]
    assert _reconcile(database, storage) == Reconciled(attempts=0, pointers=0)


def test_reconcile_of_a_pointer_that_is_there_only_remembers_it(
    database: Database, storage: FolderStorage
) -> None:
    """Expect a crash between file and inventory to leave one pointer file."""
    uri = storage.point_to(publish(database, planned(database)[0]))
    assert _reconcile(database, storage) == Reconciled(attempts=0, pointers=1)
    assert query(database, "SELECT pointer_uri FROM batch_pipeline.attempt") == [(uri,)]
    assert len(list(Path(to_path(uri)).parent.iterdir())) == 1
