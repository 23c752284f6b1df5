"""Every operation of the inventory, each ready to be done anew: what tests of faults interrupt.

An operation is prepared on a stage, which gives the call to interrupt; the same call must be safe
to repeat. Whatever was left, `finish` does the rest of the work and tells what was published.
"""

import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from batch_pipeline.inventory.database import open_database
from batch_pipeline.model.backfill import Backfill, Selection
from batch_pipeline.model.batch import AttemptStatus
from batch_pipeline.model.errors import ConfigurationError, UnknownJobError
from batch_pipeline.model.id_range import IdRange
from batch_pipeline.model.load import Loaded, Loading
from batch_pipeline.model.schema import Column, ColumnType
from batch_pipeline_tests.factories import limits, stream
from batch_pipeline_tests.inventory.operations_fixture import Call, Stage
from batch_pipeline_tests.inventory.test_acquire import ALL, LongWay
from batch_pipeline_tests.seeds import LEASE, expire, query


def _widening(stage: Stage) -> Call:
    stage.planned()
    name = f"column{len(query(stage.database, 'SELECT FROM batch_pipeline.schema_version'))}"
    column = Column(name=name, type=ColumnType.INTEGER)
    return lambda: stage.database.schemas.widen("orders", [column], text_source=True)


def _planning(stage: Stage) -> Call:
    stage.register()
    return stage.planning()


def _claiming(stage: Stage) -> Call:
    one = stage.planned()

    def call() -> None:
        with stage.database.attempts.claim(one, run_id="run-1", lease=LEASE):
            pass

    return call


def _publishing(stage: Stage) -> Call:
    return partial(stage.publish, stage.claimed(stage.planned()))


def _acquiring_long(stage: Stage) -> Call:
    table = stage.scene.source.table
    stage.scene.source = LongWay(table=table, choice=stage.scene.source.choice)
    stage.rows(2)
    return stage.acquired


def _acquiring_short(stage: Stage) -> Call:
    stage.rows(3)
    stage.acquired()  # from now on, the job is known
    return stage.acquired


def _acquiring_again(stage: Stage) -> Call:
    attempt = stage.new(1)
    stage.database.attempts.fail(attempt, "no", AttemptStatus.FAILED)
    stage.database.jobs.retry("job")
    return stage.acquired


def _acquiring_halves(stage: Stage) -> Call:
    stage.database.attempts.fail(stage.new(), "no", AttemptStatus.FAILED)
    return partial(stage.acquired, max_attempts=1, bisect=True)


def _succeeding(stage: Stage) -> Call:
    return partial(stage.succeed, stage.new())


def _failing(stage: Stage) -> Call:
    return partial(stage.database.attempts.fail, stage.new(), "no", AttemptStatus.FAILED)


def _closing_dead(stage: Stage) -> Call:
    expire(stage.database, stage.claimed(stage.planned()))
    return partial(stage.database.attempts.close_dead, "orders")


def _pausing(stage: Stage) -> Call:
    _start_job(stage)
    return partial(stage.database.jobs.pause, "job", "inventory")


def _resuming(stage: Stage) -> Call:
    _start_job(stage)
    stage.database.jobs.pause("job", "inventory")
    return partial(stage.database.jobs.resume, "job")


def _start_job(stage: Stage) -> None:
    with suppress(UnknownJobError):
        stage.database.jobs.resume("job")
    stage.new()


def _cancelling(stage: Stage) -> Call:
    stage.claimed(stage.planned())
    stage.planned()
    return partial(stage.database.jobs.cancel, "orders")


def _cancelling_batch(stage: Stage) -> Call:
    one = stage.planned()
    return partial(stage.database.jobs.cancel_batch, "orders", one.id)


def _retrying(stage: Stage) -> Call:
    stage.planned()
    stage.database.jobs.cancel("orders")
    return partial(stage.database.jobs.retry, "orders")


def _bisecting(stage: Stage) -> Call:
    one, table = stage.planned(), stage.database.meta_table("orders").reflected()

    def call() -> None:
        with suppress(ConfigurationError):  # the first call did it
            stage.database.jobs.split("orders", one.id, table)

    return call


def _backfilling(stage: Stage) -> Call:
    return _backfill(stage, Selection(ids=IdRange(first_id=1, last_id=2)))


def _backfilling_list(stage: Stage) -> Call:
    return _backfill(stage, Selection(item_ids=(1, 2)))


def _backfill(stage: Stage, selection: Selection) -> Call:
    if not stage.database.batches.statuses("orders"):
        stage.planned()
    name = f"backfill-{len(stage.database.jobs.jobs())}"
    request = Backfill.of_stream("orders", name, selection, limits(max_count=1))
    return partial(stage.database.backfills.plan, request, stage.database.meta_table("orders"))


def _auditing(stage: Stage) -> Call:
    # A job for each: an audit reads again what has late rows, so one job would have ever more.
    name = f"audited-{len(stage.database.jobs.jobs())}"
    first_id, last_id = stage.rows(2)
    attempt = stage.acquired(ALL, IdRange(first_id=first_id, last_id=last_id), name)
    assert attempt is not None
    stage.succeed(attempt)
    stage.add(first_id + 1)
    table = stage.scene.source.table
    return partial(stage.database.late_arrivals.audit, name, table, since=None)


def _claiming_load(stage: Stage) -> Call:
    loads, (target, wanted) = stage.database.loads, _due(stage)

    def call() -> None:
        with loads.claim("orders", target, wanted, run_id="run-1", lease=LEASE):
            pass

    return call


def _recording_load(stage: Stage) -> Call:
    loads, (target, wanted) = stage.database.loads, _due(stage)
    with loads.claim("orders", target, wanted, run_id="run-1", lease=LEASE) as claim:
        assert claim is not None
    return partial(loads.succeed, claim.load, Loaded(records=5), None)


def _due(stage: Stage) -> tuple[str, list[Loading]]:
    """Publish a batch for a target of its own, which no claim of before holds."""
    stage.publish(stage.claimed(stage.planned()))
    (wanted,) = list(stage.database.loads.due(stream(), "any"))[-1:]
    return f"target-{wanted.publish_number}", [wanted]


OPERATIONS: dict[str, Callable[[Stage], Call]] = {
    "register": Stage.registering,
    "plan": _planning,
    "widen a schema": _widening,
    "claim": _claiming,
    "publish": _publishing,
    "acquire the short way": _acquiring_short,
    "acquire the long way": _acquiring_long,
    "acquire again": _acquiring_again,
    "acquire halves": _acquiring_halves,
    "succeed": _succeeding,
    "fail": _failing,
    "close dead attempts": _closing_dead,
    "pause": _pausing,
    "resume": _resuming,
    "cancel": _cancelling,
    "cancel a batch": _cancelling_batch,
    "retry": _retrying,
    "bisect": _bisecting,
    "plan a backfill": _backfilling,
    "plan a backfill of a list": _backfilling_list,
    "audit": _auditing,
    "claim a load": _claiming_load,
    "record a load": _recording_load,
}
STARTS = {
    "claim",
    "acquire the short way",
    "acquire the long way",
    "acquire again",
    "acquire halves",
    "claim a load",
}


def main() -> None:
    """Do one operation in a process of its own."""
    url, name = sys.argv[1:]
    stage = Stage(open_database(url, migrated=None))
    OPERATIONS[name](stage)()
    stage.close()
