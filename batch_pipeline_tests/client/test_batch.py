"""The life of a batch in the library: how it is released, lost, forgotten, and by whom."""

import copy
import gc
import pickle
from datetime import timedelta
from functools import partial

import pytest

from batch_pipeline import Batch, acquire_batches
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
    acquire_or_none,
    acquired,
    delivered_ids,
    files,
    fill_evenly,
)
from batch_pipeline_tests.concurrency import eventually, together
from batch_pipeline_tests.seeds import execute, query, statuses

END = "SELECT status, error, logging, result, seen FROM batch_pipeline.attempt ORDER BY id"
EXPIRE = "UPDATE batch_pipeline.attempt SET lease_until = clock_timestamp() - interval '1 second'"


@pytest.fixture
def ten(meta_table: Database) -> Database:
    """Ten files of 10 MiB."""
    fill_evenly(meta_table.engine, 10)
    return meta_table


def _heartbeat() -> Heartbeat:
    return SESSIONS.current()._pipeline.database.heartbeat


def test_success_keeps_result_words_and_what_was_seen(ten: Database) -> None:
    """Expect the JSON as it would come back, the text, and the ids that were read."""
    batch = acquired(batch_count=3)
    assert (batch.items, batch.success) == (files(1, 3), None)
    batch.succeeded(result={"rows": (1, 2), 3: "drei"}, logging="all well\0")
    assert batch.success is True
    seen = {"runs": [[1, 3]], "count": 3, "weight": 30, "fingerprint": 36}
    result = {"rows": [1, 2], "3": "drei"}
    assert query(ten, END) == [("succeeded", None, "all well\\x00", result, seen)]


def test_success_without_reading_leaves_open_what_was_seen(ten: Database) -> None:
    """Expect no claim about items that nobody read."""
    acquired().succeeded()
    assert query(ten, END) == [("succeeded", None, None, None, None)]


@pytest.mark.parametrize(
    "result", [{1, 2}, float("nan"), "a\0b", {"a": ["\0"]}, "\ud800", lambda: None]
)
def test_result_that_is_no_json_changes_nothing(ten: Database, result: object) -> None:
    """Expect it to be refused before anything is written, and the batch still to be held."""
    batch = acquired()
    with pytest.raises(InvalidValueError, match="result"):
        batch.succeeded(result=result)
    assert (batch.success, batch.lost) == (None, False)
    batch.succeeded(result="fine")
    assert statuses(ten) == ["succeeded"]


def test_released_batch_cannot_be_released_again(ten: Database) -> None:
    """Expect every second word to be refused with the first, which stays."""
    batch = acquired()
    batch.succeeded(result=1)
    for again in (batch.succeeded, batch.failed, partial(batch.release, success=False)):
        with pytest.raises(BatchReleasedError, match="released already, as succeeded"):
            again()
    assert query(ten, "SELECT status, result FROM batch_pipeline.attempt") == [("succeeded", 1)]


def test_batch_cannot_be_copied_or_pickled(ten: Database) -> None:
    """Expect no twin that could release it too."""
    batch = acquired()
    for twin in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(ConfigurationError, match="belongs to process"):
            twin(batch)
    batch.succeeded()


def test_batch_is_released_once_by_threads_at_once(ten: Database) -> None:
    """Expect one of eight releases to count."""
    batch = acquired()
    results = together(*[batch.succeeded] * 4, *[partial(batch.failed, "no")] * 4)
    assert sorted(type(one).__name__ for one in results) == ["BatchReleasedError"] * 7 + [
        "NoneType"
    ]


def test_lost_batch_releases_nothing(ten: Database) -> None:
    """Expect the late word of a batch that was handed on to be refused, and the other's to stay."""
    zombie = acquired()
    execute(ten, EXPIRE)
    heir = acquired()
    assert (heir.id_range, heir.attempt) == (zombie.id_range, 2)
    with pytest.raises(FencedError):
        zombie.succeeded(result="stale")
    heir.succeeded(result="fresh")
    with pytest.raises(FencedError):
        zombie.succeeded(result="stale")
    zombie.failed("too late")
    rows = query(ten, "SELECT status, result FROM batch_pipeline.attempt ORDER BY id")
    assert rows == [("abandoned", None), ("succeeded", "fresh")]


def test_lost_batch_knows_after_the_next_renewal(ten: Database) -> None:
    """Expect `lost` to turn true when the lease could not be renewed."""
    batch = acquired()
    assert not batch.lost
    execute(ten, EXPIRE)
    heir = acquired()
    _heartbeat()._renew_all()
    assert (batch.lost, heir.lost) == (True, False)
    heir.succeeded()
    assert not heir.lost


def test_forgotten_batch_is_handed_out_again(ten: Database) -> None:
    """Expect a batch that was garbage collected to be free after the next renewal."""
    batch = acquired()
    first_ids = batch.id_range
    del batch
    gc.collect()
    _heartbeat()._renew_all()
    again = acquired()
    assert (again.id_range, again.attempt) == (first_ids, 2)
    assert statuses(ten) == ["abandoned", "running"]


def test_block_that_ends_well_succeeds(ten: Database) -> None:
    """Expect a success without a word, and a word in the block to stand."""
    with acquired(batch_count=5) as batch:
        assert batch.items == files(1, 5)
    with acquired(batch_count=5) as batch:
        batch.failed("not today", logging="tried")
    first, second = query(ten, END)
    assert first[0] == "succeeded"
    assert second[:3] == ("failed", "not today", "tried")


def test_block_with_an_exception_fails(ten: Database) -> None:
    """Expect type, message and place of the exception to be kept, and it to be raised."""
    nothing: dict[str, int] = {}
    with pytest.raises(KeyError), acquired():
        nothing["missing"] += 1
    ((status, error, *_),) = query(ten, END)
    assert (status, error.splitlines()[0]) == ("failed", "KeyError: 'missing'")
    assert 'nothing["missing"] += 1' in error


@pytest.mark.parametrize(
    "interrupt",
    [KeyboardInterrupt(), SystemExit(), RetryableError("somebody else holds a lock")],
    ids=["interrupt", "exit", "retryable"],
)
def test_block_that_is_interrupted_abandons(ten: Database, interrupt: BaseException) -> None:
    """Expect the data not to be blamed for an interrupt, however often: the batch comes first the
    next time."""
    for _ in range(4):
        with pytest.raises(type(interrupt)), acquired(batch_count=5):
            raise interrupt
    assert statuses(ten) == ["abandoned"] * 4
    again = acquired(batch_count=5)
    assert (again.items, again.attempt) == (files(1, 5), 5)


def test_process_keeps_json_that_is_returned(ten: Database) -> None:
    """Expect what is JSON as the result, anything else to be given back only."""
    assert acquired(batch_count=5).process(len) == 5
    assert acquired(batch_count=5).process(set) == set(files(6, 10))
    rows = query(ten, "SELECT status, result FROM batch_pipeline.attempt ORDER BY id")
    assert rows == [("succeeded", 5), ("succeeded", None)]


def test_release_by_flag_is_success_or_failure(ten: Database) -> None:
    """Expect the older way to release to do the same."""
    acquired(batch_count=5).release(True, result=[1], logging="ok")
    acquired(batch_count=5).release(success=False, result={"at": 7}, logging="no")
    rows = query(ten, "SELECT status, result, logging FROM batch_pipeline.attempt ORDER BY id")
    assert rows == [("succeeded", [1], "ok"), ("failed", {"at": 7}, "no")]


def test_failure_with_a_result_keeps_it_beside_error_and_text(ten: Database) -> None:
    batch = acquired(batch_count=5)
    with pytest.raises(InvalidValueError, match="result"):
        batch.failed("no", result={1, 2})
    assert (batch.success, batch.lost) == (None, False)
    batch.failed(ValueError("no"), result={"rows": (1, 2)}, logging="tried\nhard")
    ((status, error, logging, result, _),) = query(ten, END)
    assert (status, error, logging) == ("failed", "ValueError: no", "tried\nhard")
    assert result == {"rows": [1, 2]}
    view = "SELECT job_result_item, logging FROM batch_pipeline.inventory"
    assert query(ten, view) == [({"rows": [1, 2]}, "tried\nhard")]


def test_process_of_a_batch_whose_rows_are_gone_does_not_call_the_function(ten: Database) -> None:
    batch = acquired(batch_count=5)
    execute(ten, "DELETE FROM public.meta_table WHERE id <= 5")
    calls: list[object] = []
    assert batch.process(calls.append) is None
    assert (calls, batch.success) == ([], True)
    assert acquired(batch_count=5).items == files(6, 10)


def test_items_that_cannot_be_read_burn_nothing(ten: Database) -> None:
    """Expect a batch whose table went away to be held, and read once it is back."""
    batch = acquired()
    execute(ten, "ALTER TABLE meta_table RENAME TO gone")
    for _ in range(2):
        with pytest.raises(ConfigurationError):
            _ = batch.items
    execute(ten, "ALTER TABLE gone RENAME TO meta_table")
    assert batch.items == files(1, 10)
    batch.succeeded()
    assert delivered_ids(ten) == list(range(1, 11))


def test_threads_of_one_process_share_a_job(ten: Database) -> None:
    """Expect twelve threads to deliver every item exactly once."""
    fill_evenly(ten.engine, 120, first_id=11)

    def drain() -> int:
        count = 0
        while (batch := acquire_or_none(batch_count=3)) is not None:
            count += len(batch.items)
            batch.succeeded()
        return count

    results = together(*[drain] * 12)
    assert sum(one for one in results if isinstance(one, int)) == 120, results
    assert delivered_ids(ten) == list(range(1, 121))


def test_renewal_keeps_a_batch_beyond_its_lease(ten: Database) -> None:
    """Expect a short lease to be renewed by itself."""
    batch = acquired(lease=timedelta(seconds=1))
    renewed = "SELECT renewed_at - started_at > interval '1.5 seconds' FROM batch_pipeline.attempt"
    eventually(lambda: query(ten, renewed) == [(True,)])
    assert not batch.lost
    batch.succeeded()


def test_batch_says_what_it_is(ten: Database) -> None:
    """Expect job, range, attempt and outcome when it is printed."""
    batch: Batch = acquired(batch_count=2, job_identifier="run-3")
    assert repr(batch) == "<Batch job 1..2 attempt 1, running>"
    assert (batch.job, batch.job_identifier, batch.id) == ("job", "run-3", 1)
    batch.failed()
    assert repr(batch) == "<Batch job 1..2 attempt 1, failed>"


def test_batch_acquired_again_keeps_its_id_and_gets_another_attempt_id(ten: Database) -> None:
    ids = []
    for batch in acquire_batches("job", "meta_table", COLUMNS, iterations=2):
        ids.append((batch.attempt_id, batch.id, batch.attempt))
        batch.failed()
    assert ids[0][0] != ids[1][0]
    assert ids[0][1] == ids[1][1]
    view = "SELECT id, batch_id, attempt FROM batch_pipeline.inventory ORDER BY id"
    assert query(ten, view) == ids
