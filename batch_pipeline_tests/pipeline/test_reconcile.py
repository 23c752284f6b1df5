"""Reconciling inventory and storage after crashes."""

import json
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
from batch_pipeline_tests.seeds import claimed, expire, planned, publish, query
from batch_pipeline_tests.storage_roots import Root, content, storage_at


@pytest.fixture
def storage(tmp_path: Path) -> PartFileStorage:
    """An empty storage root on a disk."""
    return storage_at(to_uri(tmp_path))


@pytest.fixture(params=["disk", "s3"])
def any_storage(request: pytest.FixtureRequest, tmp_path: Path) -> PartFileStorage:
    """An empty storage root, on a disk and in S3."""
    if request.param == "disk":
        return storage_at(to_uri(tmp_path))
    bucket: str = request.getfixturevalue("bucket")
    return storage_at(bucket)


def _reconcile(database: Database, storage: PartFileStorage, stream: str = "orders") -> Reconciled:
    return reconcile(stream, database.attempts, database.manifests, storage)


def test_reconcile_only_closes_attempts_with_expired_leases(
    database: Database, storage: PartFileStorage
) -> None:
    first, second = planned(database, 2)
    with claimed(database, first), claimed(database, second) as stuck:
        assert _reconcile(database, storage) == Reconciled(attempts=0, pointers=0)
        expire(database, stuck)
        assert _reconcile(database, storage, "clicks") == Reconciled(attempts=0, pointers=0)
        assert _reconcile(database, storage) == Reconciled(attempts=1, pointers=0)
    states = [(status.state, status.error) for status in database.batches.statuses("orders")]
    interrupted = BatchState.INTERRUPTED, "the worker exited without reporting"
    assert states == [(BatchState.RUNNING, None), interrupted]


def test_reconcile_writes_missing_manifest_files(
    database: Database, any_storage: PartFileStorage
) -> None:
    """Including those of superseded generations."""
    first, second = planned(database, 2)
    manifests = [publish(database, batch) for batch in (first, second, first)]
    assert _reconcile(database, any_storage) == Reconciled(attempts=0, pointers=3)
    uris = query(database, "SELECT pointer_uri FROM batch_pipeline.attempt ORDER BY publish_number")
    written = [json.loads(content(uri)) for (uri,) in uris]
    assert written == [manifest.to_json() for manifest in manifests]
    assert _reconcile(database, any_storage) == Reconciled(attempts=0, pointers=0)


def test_reconcile_records_an_existing_manifest_file(
    database: Database, storage: PartFileStorage
) -> None:
    uri = storage.point_to(publish(database, planned(database)[0]))
    assert _reconcile(database, storage) == Reconciled(attempts=0, pointers=1)
    assert query(database, "SELECT pointer_uri FROM batch_pipeline.attempt") == [(uri,)]
    assert Root(uri.rpartition("/")[0]).names() == [uri.rpartition("/")[2]]


def test_reconcile_reports_a_taken_name_and_writes_the_other_files(
    database: Database, storage: PartFileStorage
) -> None:
    batches = planned(database, 2)
    first, second, third = [publish(database, batches[n]) for n in (0, 1, 0)]
    older = storage.point_to(replace(first, token=UUID(int=7)))
    result = _reconcile(database, storage)
    assert (result.pointers, [error.uri for error in result.troubles]) == (2, [older])
    assert isinstance(result.troubles[0], ManifestFileTakenError)
    assert json.loads(content(older))["token"] == str(UUID(int=7))
    for manifest in (second, third):
        assert json.loads(content(storage.pointer_uri(manifest))) == manifest.to_json()
