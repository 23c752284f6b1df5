"""Acquiring on Postgres: in the server and from the client, windows, kills, and many workers."""

import os
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batch_pipeline.inventory.acquire import AcquireRequest
from batch_pipeline.inventory.database import Database
from batch_pipeline.inventory.jobs import ALL_IDS
from batch_pipeline.inventory.meta_tables.catalogue import MetaColumns
from batch_pipeline.inventory.meta_tables.reflected_table import CutStatements, ReflectedMetaTable
from batch_pipeline.inventory.meta_tables.sources import MetaSource
from batch_pipeline.model.batch import MAX_ID, MIN_ID, Attempt, AttemptStatus, IdRange
from batch_pipeline.model.errors import DatabaseUnreachableError, FencedError, JobChangedError
from batch_pipeline.model.failpoint import VARIABLE
from batch_pipeline.model.filter import Condition, Operator
from batch_pipeline.model.job import JobTerms
from batch_pipeline.model.planning import Limits, cut
from batch_pipeline_tests.concurrency import eventually, python, run_python, together
from batch_pipeline_tests.inventory.invariants import check_invariants
from batch_pipeline_tests.inventory.meta_tables.user_tables import (
    choose_watermark,
    meta_engine,
)
from batch_pipeline_tests.seeds import execute, has_lock_waiters, query

ALL = Limits(max_weight=MAX_ID, max_count=MAX_ID)
WORKER = """
import sys
import sqlalchemy as sa
from batch_pipeline_tests.inventory.test_acquire import FilesJob, weight_limit
from batch_pipeline.inventory.database import open_database
database = open_database(sys.argv[1], migrated=None)
engine = sa.create_engine(database.engine.url)
files_job = FilesJob(database, engine, server_side=sys.argv[2] == "server")
for _ in range(int(sys.argv[3])):
    attempt = files_job.acquire(weight_limit(30))
    if attempt is None:
        break
    database.attempts.succeed(attempt, logging=None, seen=None)
print("done")
"""


class ClientSideSource(MetaSource):
    """A table handled as if it were in another database than the inventory."""

    def cut_statements(self, inventory: sa.Engine) -> CutStatements | None:
        """Return None: nothing can run in the inventory's database."""
        return None


def weight_limit(weight: int, count: int = MAX_ID) -> Limits:
    """Return limits with a maximum weight."""
    return Limits(max_weight=weight, max_count=count)


@dataclass
class FilesJob:
    """A table `public.files` in the inventory's database, and a job on it."""

    database: Database
    engine: sa.Engine
    server_side: bool = True
    source: MetaSource = field(init=False)

    def __post_init__(self) -> None:
        columns = MetaColumns(uid="id", item="item", weight="weight")
        table = ReflectedMetaTable.open(self.engine, "public.files", columns)
        source_type = MetaSource if self.server_side else ClientSideSource
        self.source = source_type(table=table, choice=choose_watermark(table))

    def add(self, weights: dict[int, int]) -> None:
        """Insert rows by id and weight."""
        if weights:
            with self.engine.begin() as connection:
                rows = [{"id": uid, "weight": weight} for uid, weight in weights.items()]
                connection.execute(sa.text(INSERT), rows)

    def acquire(
        self, limits: Limits = ALL, job: str = "job", window: IdRange = ALL_IDS, **terms: Any
    ) -> Attempt | None:
        """Acquire the next batch of a job."""
        request = AcquireRequest(
            terms=JobTerms(name=job, meta_table=self.source.name, **terms),
            limits=limits,
            config={"batch_weight": limits.max_weight, "batch_count": limits.max_count},
            window=window,
        )
        return self.database.acquisitions.acquire(request, self.source)

    def ranges(self, limits: Limits = ALL, **options: Any) -> list[str]:
        """Acquire and publish batches until none is left; return their ranges."""
        ranges = []
        while (attempt := self.acquire(limits, **options)) is not None:
            ranges.append(str(attempt.batch.id_range))
            self.database.attempts.succeed(attempt, logging=None, seen=None)
        return ranges


INSERT = "INSERT INTO public.files (id, item, weight) VALUES (:id, 'file-' || :id, :weight)"
PUBLISHED = """
SELECT item.id FROM batch_pipeline.batch
  JOIN batch_pipeline.attempt ON attempt.batch_id = batch.id AND attempt.status = 'succeeded',
       LATERAL generate_series(batch.first_id, batch.last_id) AS item(id) ORDER BY 1
"""
ARE_EXPIRED = "SELECT lease_until < clock_timestamp() FROM batch_pipeline.attempt ORDER BY id"
CREATE = """
CREATE TABLE public.files (
    id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, item text, weight bigint)
"""


@pytest.fixture(params=["server", "client"])
def files_job(
    request: pytest.FixtureRequest, database: Database, database_url: str
) -> Iterator[FilesJob]:
    """A job on an empty table, acquired from in one round trip and in several."""
    execute(database, CREATE)
    with meta_engine(database_url) as engine:
        yield FilesJob(database, engine, server_side=request.param == "server")


@pytest.mark.guarantee("G6", "G7")
@given(
    weights=st.dictionaries(st.integers(-20, 60), st.integers(0, 40), max_size=25),
    limits_per_call=st.lists(
        st.builds(weight_limit, st.integers(1, 60), st.integers(1, 6)), min_size=1, max_size=4
    ),
)
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_acquire_matches_reference_cut(
    files_job: FilesJob, weights: dict[int, int], limits_per_call: list[Limits]
) -> None:
    execute(files_job.database, "TRUNCATE batch_pipeline.job CASCADE")
    execute(files_job.database, "TRUNCATE public.files")
    files_job.source._known = None
    files_job.add(weights)
    high_watermark = max(weights, default=0)
    after_id = min(weights, default=1) - 1
    for limits in limits_per_call * 30:
        left = sorted((uid, weight) for uid, weight in weights.items() if uid > after_id)
        expected = next(
            cut(left, after_id=after_id, high_watermark=high_watermark, limits=limits), None
        )
        attempt = files_job.acquire(limits)
        if expected is None:
            assert attempt is None
            break
        assert attempt is not None
        assert attempt.batch.id_range == expected.id_range
        assert (attempt.batch.weight, attempt.batch.count) == (expected.weight, expected.count)
        after_id = expected.id_range.last_id
    check_invariants(files_job.database)


def test_acquire_within_windows_takes_each_id_once(files_job: FilesJob) -> None:
    """Ids outside a window are acquired later."""
    files_job.add(dict.fromkeys(range(1, 101), 1))
    window = IdRange(first_id=50, last_id=60)
    assert files_job.ranges(weight_limit(5), window=window) == ["50..54", "55..59", "60..60"]
    assert files_job.ranges(window=IdRange(first_id=40, last_id=70)) == ["40..49", "61..70"]
    assert files_job.ranges() == ["1..39", "71..100"]
    bookmarks = query(files_job.database, "SELECT first_id, last_id FROM batch_pipeline.bookmark")
    assert bookmarks == [(MIN_ID, 100)]
    files_job.add({101: 1})
    assert files_job.ranges() == ["101..101"]
    check_invariants(files_job.database)


def test_acquire_with_other_filter_is_rejected(files_job: FilesJob) -> None:
    """Ids that the first filter excluded must not be skipped silently."""
    files_job.add({1: 1})
    files_job.acquire()
    with pytest.raises(JobChangedError, match="filter"):
        files_job.acquire(where=Condition("item", Operator.EQUAL, "file-1"))


@pytest.mark.parametrize("kind", ["incremental", "backfill"])
def test_acquire_from_job_of_stream_is_rejected(files_job: FilesJob, kind: str) -> None:
    """Its batches would be published without files."""
    create = (
        "INSERT INTO batch_pipeline.job (name, meta_table, kind, stream) "
        "VALUES ('orders', :meta_table, :kind, 'orders')"
    )
    execute(files_job.database, create, meta_table=files_job.source.name, kind=kind)
    with pytest.raises(JobChangedError, match="it belongs to the stream 'orders'"):
        files_job.acquire(job="orders")


def test_failed_batch_is_retried_after_new_batches(files_job: FilesJob) -> None:
    """A batch has at most three attempts."""
    files_job.add(dict.fromkeys(range(1, 5), 1))
    tries = []
    while (attempt := files_job.acquire(weight_limit(2))) is not None:
        tries.append((str(attempt.batch.id_range), attempt.number))
        if attempt.batch.id_range.first_id == 1:
            files_job.database.attempts.fail(attempt, "broken", AttemptStatus.FAILED)
        else:
            files_job.database.attempts.succeed(attempt, logging=None, seen=None)
    assert tries == [("1..2", 1), ("3..4", 1), ("1..2", 2), ("1..2", 3)]
    states = query(files_job.database, "SELECT state FROM batch_pipeline.batch_state ORDER BY 1")
    assert states == [("dead",), ("published",)]


def test_batch_of_dead_worker_is_acquired_first(files_job: FilesJob, database_url: str) -> None:
    """The killed worker's attempt is fenced."""
    files_job.add(dict.fromkeys(range(1, 11), 10))
    side = "server" if files_job.server_side else "client"
    dying = "acquire.after_commit=kill"
    assert run_python(WORKER, database_url, side, "9", failpoints=dying) == -signal.SIGKILL
    first_attempt = "SELECT token, batch_id FROM batch_pipeline.attempt WHERE number = 1"
    [(token, batch_id)] = query(files_job.database, first_attempt)
    again = files_job.acquire(weight_limit(30))
    assert again is not None
    assert (again.batch.id, again.number, str(again.batch.id_range)) == (batch_id, 2, "1..3")
    zombie = Attempt(id=1, batch=again.batch, number=1, token=token)
    with pytest.raises(FencedError):
        files_job.database.attempts.succeed(zombie, logging=None, seen=None)
    assert files_job.database.attempts.succeed(again, logging=None, seen=None) == 1


@pytest.mark.guarantee("G1", "G2")
def test_acquire_by_eight_workers_has_no_overlap_or_gap(
    files_job: FilesJob, database_url: str
) -> None:
    """Two processes and six threads share 600 ids in batches of three."""
    files_job.add(dict.fromkeys(range(1, 601), 10))
    side = "server" if files_job.server_side else "client"
    with (
        python(WORKER, database_url, side, "999") as process,
        python(WORKER, database_url, side, "999"),
    ):
        results = together(*[partial(files_job.ranges, weight_limit(30))] * 6)
        assert not [error for error in results if isinstance(error, Exception)]
        assert process.stdout is not None
        process.stdout.readline()
    files_job.ranges(weight_limit(30))
    published = query(files_job.database, PUBLISHED)
    assert published == [(uid,) for uid in range(1, 601)]
    statement = "SELECT first_id, last_id FROM batch_pipeline.batch ORDER BY first_id"
    ranges = query(files_job.database, statement)
    assert all(right[0] == left[1] + 1 for left, right in pairwise(ranges))
    check_invariants(files_job.database)


def test_server_side_acquire_sends_one_statement(files_job: FilesJob) -> None:
    files_job.add(dict.fromkeys(range(1, 10), 10))
    for _ in range(2):  # the first two look up the job and the table
        files_job.acquire(weight_limit(20))
    sent: list[str] = []
    engine = files_job.database.acquisitions._server_side._engine
    sa.event.listen(engine, "before_cursor_execute", lambda *event: sent.append(event[2]))
    attempt = files_job.acquire(weight_limit(20))
    assert attempt is not None
    assert str(attempt.batch.id_range) == "5..6"
    calls = [statement for statement in sent if "FROM pg_temp.batch_pipeline_acquire" in statement]
    assert (len(sent), len(calls)) == ((1, 1) if files_job.server_side else (0, 0))


def test_attempt_interrupted_after_its_commit_expires(
    files_job: FilesJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    files_job.add(dict.fromkeys(range(1, 10), 10))
    for _ in range(2):  # the first two look up the job and the table
        files_job.acquire(weight_limit(20))
    monkeypatch.setenv(VARIABLE, "acquire.after_commit=raise")
    with pytest.raises(RuntimeError, match="failpoint"):
        files_job.acquire(weight_limit(20))
    assert query(files_job.database, ARE_EXPIRED) == [(False,), (False,), (True,)]


@pytest.mark.parametrize("files_job", ["server"], indirect=True)
def test_attempt_committed_after_its_connection_was_lost_expires(files_job: FilesJob) -> None:
    """The server continues the statement, which waits for a lock."""
    files_job.add(dict.fromkeys(range(1, 10), 10))
    for _ in range(2):  # the first two look up the job and the table
        files_job.acquire(weight_limit(20))
    database, connections = files_job.database, []
    engine = database.acquisitions._server_side._engine
    sa.event.listen(engine, "before_cursor_execute", lambda *event: connections.append(event[0]))
    with ThreadPoolExecutor(1) as pool, database.engine.begin() as other_session:
        other_session.execute(sa.text("LOCK batch_pipeline.batch IN EXCLUSIVE MODE"))
        acquired = pool.submit(files_job.acquire, weight_limit(20))
        eventually(lambda: has_lock_waiters(database))
        raw: Any = connections[0].connection.dbapi_connection
        with socket.socket(fileno=os.dup(raw.fileno())) as own_end:
            own_end.shutdown(socket.SHUT_RDWR)
        with pytest.raises(DatabaseUnreachableError):
            acquired.result()
    eventually(lambda: len(query(database, ARE_EXPIRED)) == 3)
    database.heartbeat._renew_all()
    assert query(database, ARE_EXPIRED) == [(False,), (False,), (True,)]


@pytest.mark.parametrize("files_job", ["server"], indirect=True)
def test_interrupted_thread_that_waits_for_another_one_gets_no_batch(files_job: FilesJob) -> None:
    files_job.add(dict.fromkeys(range(1, 10), 10))
    for _ in range(2):  # the first two look up the job and the table
        files_job.acquire(weight_limit(20))
    waiting = files_job.database.acquisitions._server_side._waiting
    acquired: list[Attempt | None] = []

    def acquire_twice() -> None:
        acquired.extend(files_job.acquire(weight_limit(20)) for _ in range(2))

    def interrupt() -> None:
        eventually(lambda: len(waiting) == 2)
        os.kill(os.getpid(), signal.SIGINT)

    threads = [threading.Thread(target=target) for target in (acquire_twice, interrupt)]
    with files_job.database.engine.begin() as other_session:
        other_session.execute(sa.text("LOCK batch_pipeline.batch IN EXCLUSIVE MODE"))
        threads[0].start()
        eventually(lambda: has_lock_waiters(files_job.database))
        threads[1].start()
        with pytest.raises(KeyboardInterrupt):
            files_job.acquire(weight_limit(20))
    for thread in threads:
        thread.join()
    assert [str(one and one.batch.id_range) for one in acquired] == ["5..6", "7..8"]
    assert query(files_job.database, ARE_EXPIRED) == [(False,)] * 4
