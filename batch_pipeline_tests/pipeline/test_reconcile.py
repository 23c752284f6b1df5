"""Bringing inventory and storage back in step after crashes."""

import json
import signal
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from batch_pipeline.inventory.database import Database
from batch_pipeline.model.batch import BatchState
from batch_pipeline.model.errors import ManifestFileTakenError
from batch_pipeline.model.location import to_uri
from batch_pipeline.pipeline.reconcile import Reconciled, reconcile
from batch_pipeline.storage.part_storage import PartFileStorage
from batch_pipeline_tests.concurrency import eventually, python, said
from batch_pipeline_tests.seeds import CLAIM_AND_WAIT, claimed, expire, planned, publish, query
from batch_pipeline_tests.storage_roots import Root, content, storage_at


@pytest.fixture
def storage(tmp_path: Path) -> PartFileStorage:
    """A storage of its own."""
    return storage_at(to_uri(tmp_path))


@pytest.fixture(params=["disk", "s3"])
def any_storage(request: pytest.FixtureRequest, tmp_path: Path) -> PartFileStorage:
    """A storage of its own, on a disk and in S3."""
    if request.param == "disk":
        return storage_at(to_uri(tmp_path))
    bucket: str = request.getfixturevalue("bucket")
    return storage_at(bucket)


def _reconcile(database: Database, storage: PartFileStorage, job: str = "orders") -> Reconciled:
    return reconcile(job, database.attempts, database.manifests, storage)


def test_reconcile_with_nothing_open_does_nothing(
    database: Database, storage: PartFileStorage
) -> None:
    """Expect no work before the first batch, and none of planned ones."""
    assert _reconcile(database, storage) == Reconciled(attempts=0, pointers=0)
    planned(database)
    assert _reconcile(database, storage) == Reconciled(attempts=0, pointers=0)


def test_reconcile_closes_the_attempt_of_a_killed_process(
    database: Database, database_url: str, storage: PartFileStorage
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
        "the worker exited without reporting",
    )


def test_reconcile_beside_a_live_attempt_leaves_it_alone(
    database: Database, storage: PartFileStorage
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
    database: Database, any_storage: PartFileStorage
) -> None:
    """Expect each missing pointer once, remembered in the inventory, also of old generations."""
    first, second = planned(database, 2)
    manifests = [publish(database, one) for one in (first, second, first)]
    assert _reconcile(database, any_storage) == Reconciled(attempts=0, pointers=3)
    uris = query(database, "SELECT pointer_uri FROM batch_pipeline.attempt ORDER BY publish_number")
    written = [json.loads(content(uri)) for (uri,) in uris]
    assert written == [manifest.to_json() for manifest in manifests]
    assert _reconcile(database, any_storage) == Reconciled(attempts=0, pointers=0)


def test_reconcile_of_a_pointer_that_is_there_only_remembers_it(
    database: Database, any_storage: PartFileStorage
) -> None:
    """Expect a crash between file and inventory to leave one manifest file."""
    uri = any_storage.point_to(publish(database, planned(database)[0]))
    assert _reconcile(database, any_storage) == Reconciled(attempts=0, pointers=1)
    assert query(database, "SELECT pointer_uri FROM batch_pipeline.attempt") == [(uri,)]
    assert Root(uri.rpartition("/")[0]).names() == [uri.rpartition("/")[2]]


def test_reconcile_writes_the_pointers_behind_one_whose_name_is_taken(
    database: Database, any_storage: PartFileStorage
) -> None:
    """Expect the first of three to be told, to stay as it is, and the others to be written."""
    one, two = planned(database, 2)
    first, second, third = [publish(database, batch) for batch in (one, two, one)]
    older = any_storage.point_to(replace(first, token=UUID(int=7)))
    done = _reconcile(database, any_storage)
    assert (done.pointers, [trouble.uri for trouble in done.troubles]) == (2, [older])
    assert isinstance(done.troubles[0], ManifestFileTakenError)
    assert json.loads(content(older))["token"] == str(UUID(int=7))
    for manifest in (second, third):
        assert json.loads(content(any_storage.pointer_uri(manifest))) == manifest.to_json()
