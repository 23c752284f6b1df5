"""The life cycle of a batch in the library: release, loss and garbage collection."""

import copy
import gc
import pickle
from collections.abc import Iterator
from datetime import timedelta
from functools import partial

import pytest

from batch_pipeline import Batch, acquire_batches, client
from batch_pipeline.client.session import SESSIONS
from batch_pipeline.inventory.attempts import Heartbeat
from batch_pipeline.inventory.database import Database
from batch_pipeline.model.errors import (
    BatchReleasedError,
    ConfigurationError,
    FencedError,
    InvalidValueError,
    RetryableError,
)
from batch_pipeline_tests.client.client_tables import (
    COLUMNS,
    acquired,
    delivered_ids,
    files,
)
from batch_pipeline_tests.concurrency import eventually, together
from batch_pipeline_tests.seeds import execute, query, statuses

END = "SELECT status, error, logging, result, seen FROM batch_pipeline.attempt ORDER BY id"
EXPIRE = "UPDATE batch_pipeline.attempt SET lease_until = clock_timestamp() - interval '1 second'"


def _heartbeat() -> Heartbeat:
    return SESSIONS.current()._pipeline.database.heartbeat


def test_success_stores_result_log_and_read_ids(ten_files: Database) -> None:
    batch = acquired(batch_count=3)
    assert (batch.items, batch.success) == (files(1, 3), None)
    batch.succeeded(result={"rows": (1, 2), 3: "drei"}, logging="all well\0")
    assert batch.success is True
    seen = {"runs": [[1, 3]], "count": 3, "weight": 30, "fingerprint": 36}
    result = {"rows": [1, 2], "3": "drei"}
    acquired().succeeded()
    assert query(ten_files, END) == [
        ("succeeded", None, "all well\\x00", result, seen),
        ("succeeded", None, None, None, None),
    ]


def test_result_that_is_not_json_changes_nothing(ten_files: Database) -> None:
    batch = acquired()
    for result in ({1, 2}, float("nan"), "a\0b", {"a": ["\0"]}, "\ud800", lambda: None):
        with pytest.raises(InvalidValueError, match="result"):
            batch.succeeded(result=result)
        assert (batch.success, batch.lost) == (None, False)
    batch.succeeded(result="fine")
    assert statuses(ten_files) == ["succeeded"]


def test_released_batch_cannot_be_released_again(ten_files: Database) -> None:
    batch = acquired()
    batch.succeeded(result=1)
    for release in (batch.succeeded, batch.failed, partial(batch.release, success=False)):
        with pytest.raises(BatchReleasedError, match="released already, as succeeded"):
            release()
    assert query(ten_files, "SELECT status, result FROM batch_pipeline.attempt") == [
        ("succeeded", 1)
    ]


def test_batch_cannot_be_copied_or_pickled(ten_files: Database) -> None:
    batch = acquired()
    for copy_batch in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(ConfigurationError, match="belongs to process"):
            copy_batch(batch)
    batch.succeeded()


def test_concurrent_releases_count_once(ten_files: Database) -> None:
    batch = acquired()
    results = together(*[batch.succeeded] * 4, *[partial(batch.failed, "no")] * 4)
    assert sorted(type(result).__name__ for result in results) == ["BatchReleasedError"] * 7 + [
        "NoneType"
    ]


def test_lost_batch_releases_nothing(ten_files: Database) -> None:
    expired = acquired()
    execute(ten_files, EXPIRE)
    current = acquired()
    assert (current.id_range, current.attempt) == (expired.id_range, 2)
    with pytest.raises(FencedError, match=r"published nothing\. Another attempt has replaced it"):
        expired.succeeded(result="stale")
    current.succeeded(result="fresh")
    with pytest.raises(FencedError):
        expired.succeeded(result="stale")
    expired.failed("too late")
    rows = query(ten_files, "SELECT status, result FROM batch_pipeline.attempt ORDER BY id")
    assert rows == [("abandoned", None), ("succeeded", "fresh")]


def test_batch_is_lost_after_a_failed_renewal(ten_files: Database) -> None:
    batch = acquired()
    assert not batch.lost
    execute(ten_files, EXPIRE)
    current = acquired()
    _heartbeat()._renew_all()
    assert (batch.lost, current.lost) == (True, False)
    current.succeeded()
    assert not current.lost


def test_batch_whose_lease_cannot_be_renewed_is_lost_when_it_expires(ten_files: Database) -> None:
    """It can still be released if no other worker has taken it."""
    batch = acquired(lease=timedelta(seconds=1))
    execute(ten_files, "ALTER TABLE batch_pipeline.attempt RENAME TO hidden")
    eventually(lambda: batch.lost)
    execute(ten_files, "ALTER TABLE batch_pipeline.hidden RENAME TO attempt")
    eventually(lambda: not batch.lost)
    batch.succeeded()


def test_batch_of_a_closed_client_is_lost(ten_files: Database) -> None:
    batch = acquired()
    client.close()
    assert batch.lost


def test_garbage_collected_batch_is_acquired_again(ten_files: Database) -> None:
    batch = acquired()
    first_ids = batch.id_range
    del batch
    gc.collect()
    _heartbeat()._renew_all()
    again = acquired()
    assert (again.id_range, again.attempt) == (first_ids, 2)
    assert statuses(ten_files) == ["abandoned", "running"]


def test_with_block_succeeds_unless_released_inside(ten_files: Database) -> None:
    with acquired(batch_count=5) as batch:
        assert batch.items == files(1, 5)
    with acquired(batch_count=5) as batch:
        batch.failed("not today", logging="tried")
    first, second = query(ten_files, END)
    assert first[0] == "succeeded"
    assert second[:3] == ("failed", "not today", "tried")


def test_with_block_with_an_exception_fails(ten_files: Database) -> None:
    empty: dict[str, int] = {}
    with pytest.raises(KeyError), acquired():
        empty["missing"] += 1
    ((status, error, *_),) = query(ten_files, END)
    assert (status, error.splitlines()[0]) == ("failed", "KeyError: 'missing'")
    assert 'empty["missing"] += 1' in error


def test_interrupted_with_block_abandons_the_batch(ten_files: Database) -> None:
    """Such attempts do not count against `max_attempts`."""
    locked = RetryableError("somebody else holds a lock")
    for interrupt in (KeyboardInterrupt(), SystemExit(), locked, locked):
        with pytest.raises(type(interrupt)), acquired(batch_count=5):
            raise interrupt
    assert statuses(ten_files) == ["abandoned"] * 4
    again = acquired(batch_count=5)
    assert (again.items, again.attempt) == (files(1, 5), 5)


def test_process_stores_json_return_values(ten_files: Database) -> None:
    """Other return values are only returned. An exception fails the batch."""

    def rename(items: list[str], suffix: str, *, times: int) -> list[str]:
        return [item + suffix for item in items] * times

    def refuse(items: list[str]) -> None:
        raise RuntimeError(f"cannot read {items[0]}")

    assert acquired(batch_count=1).process(rename, ".gz", times=2) == ["file-1.gz"] * 2
    assert acquired(batch_count=4).process(set) == set(files(2, 5))
    with pytest.raises(RuntimeError, match="cannot read file-6"):
        acquired(batch_count=5).process(refuse)
    rows = query(ten_files, "SELECT status, result FROM batch_pipeline.attempt ORDER BY id")
    assert rows == [("succeeded", ["file-1.gz"] * 2), ("succeeded", None), ("failed", None)]


def test_process_refuses_functions_that_return_before_their_work_is_done(
    ten_files: Database,
) -> None:
    async def fetch(items: list[str]) -> None:
        raise AssertionError(items)

    def lines(items: list[str]) -> Iterator[str]:
        yield from items

    for function in (fetch, lines):
        with pytest.raises(InvalidValueError, match="done its work when it returns"):
            acquired(batch_count=5).process(function)
    assert statuses(ten_files) == ["failed"] * 2


def test_release_with_flag_succeeds_or_fails(ten_files: Database) -> None:
    acquired(batch_count=5).release(True, result=[1], logging="ok")
    acquired(batch_count=5).release(success=False, result={"at": 7}, logging="no")
    rows = query(
        ten_files, "SELECT status, result, logging FROM batch_pipeline.attempt ORDER BY id"
    )
    assert rows == [("succeeded", [1], "ok"), ("failed", {"at": 7}, "no")]


def test_failure_stores_result_error_and_log(ten_files: Database) -> None:
    batch = acquired(batch_count=5)
    with pytest.raises(InvalidValueError, match="result"):
        batch.failed("no", result={1, 2})
    assert (batch.success, batch.lost) == (None, False)
    batch.failed(ValueError("no"), result={"rows": (1, 2)}, logging="tried\nhard")
    ((status, error, logging, result, _),) = query(ten_files, END)
    assert (status, error, logging) == ("failed", "ValueError: no", "tried\nhard")
    assert result == {"rows": [1, 2]}
    view = "SELECT job_result_item, logging FROM batch_pipeline.inventory"
    assert query(ten_files, view) == [({"rows": [1, 2]}, "tried\nhard")]


def test_process_of_deleted_rows_does_not_call_the_function(ten_files: Database) -> None:
    batch = acquired(batch_count=5)
    execute(ten_files, "DELETE FROM public.meta_table WHERE id <= 5")
    calls: list[object] = []
    assert batch.process(calls.append) is None
    assert (calls, batch.success) == ([], True)
    assert acquired(batch_count=5).items == files(6, 10)


def test_batch_is_kept_while_its_table_cannot_be_read(ten_files: Database) -> None:
    batch = acquired()
    execute(ten_files, "ALTER TABLE meta_table RENAME TO gone")
    for _ in range(2):
        with pytest.raises(ConfigurationError):
            _ = batch.items
    execute(ten_files, "ALTER TABLE gone RENAME TO meta_table")
    assert batch.items == files(1, 10)
    batch.succeeded()
    assert delivered_ids(ten_files) == list(range(1, 11))


def test_repr_has_job_range_attempt_and_status(ten_files: Database) -> None:
    batch: Batch = acquired(batch_count=2, job_identifier="run-3")
    assert repr(batch) == "<Batch job 1..2 attempt 1, running>"
    assert (batch.job, batch.job_identifier, batch.id) == ("job", "run-3", 1)
    batch.failed()
    assert repr(batch) == "<Batch job 1..2 attempt 1, failed>"


def test_retried_batch_keeps_its_id_and_gets_a_new_attempt_id(ten_files: Database) -> None:
    ids = []
    for batch in acquire_batches("job", "meta_table", COLUMNS, iterations=2):
        ids.append((batch.attempt_id, batch.id, batch.attempt))
        batch.failed()
    assert ids[0][0] != ids[1][0]
    assert ids[0][1] == ids[1][1]
    view = "SELECT id, batch_id, attempt FROM batch_pipeline.inventory ORDER BY id"
    assert query(ten_files, view) == ids
