"""Batches that are meant to take a while: what planners learn from attempts, and what they tell."""

import json
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from batch_pipeline.cli import cli
from batch_pipeline.domain.backfill import Backfill, Selection
from batch_pipeline.domain.batch import AttemptStatus, Batch
from batch_pipeline.domain.planning import Limits, Planned
from batch_pipeline.inventory.database import Database
from batch_pipeline_tests.concurrency import together
from batch_pipeline_tests.factories import found_file, limits
from batch_pipeline_tests.integration.meta_tables import recorded, rows_touched
from batch_pipeline_tests.integration.seeds import (
    LEASE,
    ORDER_ID,
    execute,
    plan,
    publish,
    query,
    register,
)

BOUNDS = limits(max_weight=1_600, max_count=10_000, target_seconds=60)
Run = Callable[..., Result]


def publish_in(database: Database, one: Batch, seconds: float) -> None:
    """Publish a batch, and let its attempt have begun that long before."""
    database.schemas.widen("orders", [ORDER_ID], text_source=True)
    publish(database, one)
    execute(
        database,
        "UPDATE batch_pipeline.attempt SET started_at = finished_at - :took * interval '1 s' "
        "WHERE batch_id = :id",
        took=seconds,
        id=one.id,
    )


def limit_of(database: Database, bounds: Limits = BOUNDS) -> int:
    """The weight that the next plan cuts by."""
    return database.learned_limits.of_stream("orders", bounds).limits.max_weight


def published(database: Database, *seconds: float) -> None:
    """Publish a full batch for each of these times, planned one after the other."""
    for took in seconds:
        (highest,) = query(database, "SELECT count(*) FROM batch_pipeline.item")[0]
        register(database, limit_of(database) // 10, first=highest + 1)
        (one,) = plan(database, BOUNDS)
        publish_in(database, one, took)


def kept(database: Database) -> list[dict[str, Any]]:
    """What is kept with each batch, oldest first."""
    return [
        row[0] for row in query(database, "SELECT config FROM batch_pipeline.batch ORDER BY id")
    ]


@pytest.fixture
def run(database_url: str, tmp_path: Path) -> Run:
    """The command with a stream `orders` whose batches should take a minute."""
    attributes = {
        "stream": "orders",
        "source": {"uri": str(tmp_path / "landing"), "format": "csv"},
        "batch": {"max_weight": 1_600, "max_count": 10_000, "target_seconds": 60},
        "storage": {"root": str(tmp_path / "batches")},
    }
    path = tmp_path / "streams" / "orders" / "defs.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(
        yaml.safe_dump({"type": "batch_pipeline.BatchStream", "attributes": attributes})
    )
    environment = {
        "BATCH_PIPELINE_HOME": str(tmp_path / "home"),
        "BATCH_PIPELINE_STREAMS": str(path.parents[1]),
        "BATCH_PIPELINE_INVENTORY_CONN": database_url,
    }
    return lambda *words: CliRunner().invoke(cli, words, env=environment)


def test_batches_settle_after_bytes_cost_more(database: Database) -> None:
    """Expect 45 to 75 s from the seventh batch on, and again when a byte costs four times that."""
    bounds = limits(max_weight=800, max_count=10_000, target_seconds=60)
    took: list[float] = []
    ids = count(1)
    for seconds_per_byte in [0.2] * 9 + [0.8] * 9:
        files = [found_file(next(ids)) for _ in range(limit_of(database, bounds) // 10)]
        database.meta_table("orders").register(files, accept_changed=False)
        (one,) = plan(database, bounds)
        took.append(5 + seconds_per_byte * one.weight)
        publish_in(database, one, took[-1])
    assert took[0] == 165
    assert took[9] > 180
    assert all(45 <= seconds <= 75 for seconds in took[6:9] + took[15:])
    weights = [status.batch.weight for status in database.batches.statuses("orders")]
    assert [int(config["max_weight"]) // 10 * 10 for config in kept(database)] == weights


def test_plan_keeps_with_each_batch_why_it_was_cut_so(database: Database) -> None:
    """Expect limit, target and speed with the batches, and only the limits without a target."""
    published(database, 160, 160, 160)
    register(database, 100, first=481)
    assert [one.weight for one in plan(database, BOUNDS)] == [800, 200]
    assert kept(database)[-1] == {
        "max_weight": "800",
        "max_count": "10000",
        "min_weight": "0",
        "max_wait": "0:05:00",
        "target_seconds": "60",
        "most_weight": "1600",
        "weight_per_second": "10.0",
        "learned_from": "3",
    }
    assert "learned_from" in kept(database)[0]
    assert limit_of(database, limits(max_weight=1_600)) == 1_600


def test_backlog_is_planned_when_the_first_batches_have_shown_their_pace(
    database: Database,
) -> None:
    """Expect three batches, and three more after a step, until the limit has settled; then all."""
    register(database, 2_000)
    table, sizes = database.meta_table("orders"), []
    while True:
        done = database.batches.plan(table, BOUNDS, drain=True)
        sizes.append((done.batches, done.held))
        if not done.held:
            break
        assert database.batches.plan(table, BOUNDS, drain=True).batches == 0
        assert done.ids is not None
        for status in database.batches.statuses("orders", done.ids):
            publish_in(database, status.batch, status.batch.weight / 10)
    assert sizes == [(3, True), (3, True), (22, False)]
    assert [int(one["max_weight"]) for one in kept(database)][::3] == [1_600, 800] + [600] * 8
    assert database.standings.tiling("orders").holes == 0
    assert database.batches.backlog(table) == (0, 0)


def test_two_planners_at_once_are_three_batches_ahead_together(
    database: Database, rival: Database
) -> None:
    """Expect the second planner to see what the first has planned, and to plan nothing."""
    register(database, 2_000)
    plans = [
        partial(one.batches.plan, one.meta_table("orders"), BOUNDS, drain=True)
        for one in (database, rival)
    ]
    found = [done for done in together(*plans) if isinstance(done, Planned)]
    assert sorted(done.batches for done in found) == [0, 3]


def test_batches_that_failed_hold_nothing_up(database: Database) -> None:
    """Expect three others in the place of three that failed, and those that run to count."""
    register(database, 2_000)
    table = database.meta_table("orders")
    for one in plan(database, BOUNDS):
        with database.attempts.claim(one, run_id="r", lease=LEASE) as attempt:
            assert database.batches.plan(table, BOUNDS, drain=True).batches == 0
            database.attempts.fail(attempt, "bad", AttemptStatus.FAILED)
        assert database.batches.plan(table, BOUNDS, drain=True).batches == 1


def test_small_batches_hold_nothing_up(database: Database) -> None:
    """Expect a stream whose batches are never full to be planned as any other after three."""
    few = limits(max_weight=1_600, max_count=10, target_seconds=60)
    register(database, 300)
    for one in plan(database, few):
        publish_in(database, one, 5)
    assert len(plan(database, few)) == 27
    assert {config["max_weight"] for config in kept(database)} == {"1600"}


def test_item_between_learned_and_configured_limit_is_alone_and_not_flagged(
    database: Database,
) -> None:
    """Expect the flag for what is heavier than the limit in the stream file, and that alone."""
    published(database, 160, 160, 160)
    files = [
        found_file(number, size_bytes=size)
        for number, size in ((481, 900), (482, 10), (483, 1_601))
    ]
    database.meta_table("orders").register(files, accept_changed=False)
    told = database.batches.estimate(database.meta_table("orders"), BOUNDS)
    found = [(one.weight, one.oversized) for one in plan(database, BOUNDS)]
    assert found == [(900, False), (10, False), (1_601, True)]
    assert (told.batches, told.oversized) == (3, 1)


def test_backfill_is_cut_by_what_its_stream_has_learned(database: Database) -> None:
    """Expect 800 bytes a batch, as the dry run tells, and again when the same is asked later."""
    published(database, 160, 160, 160)
    table = database.meta_table("orders")
    request = Backfill.of_stream("orders", "again", Selection(), BOUNDS)
    chosen = Backfill.of_stream("orders", "some", Selection(item_ids=tuple(range(1, 101))), BOUNDS)
    assert database.backfills.estimate(request, table).batches == 6
    assert database.backfills.plan(request, table).batches == 6
    assert database.backfills.estimate(chosen, table).batches == 2
    assert database.backfills.plan(chosen, table).batches == 2
    published(database, 60, 60, 60)  # 80, 60 and 60 items
    assert database.backfills.plan(request, table).items == 200
    assert {config["max_weight"] for config in kept(database)[3:11]} == {"800"}


def test_late_items_are_cut_by_what_their_stream_has_learned(database: Database) -> None:
    """Expect 800 bytes a batch of what the attempts had left out, and why to be kept with it."""
    published(database, 160, 160, 160)
    table = database.meta_table("orders").reflected()
    audit = database.late_arrivals.audit("orders", table, limits=BOUNDS)
    assert (audit.late.count, audit.late_batches) == (479, 6)
    assert (kept(database)[-1]["max_weight"], kept(database)[-1]["learned_from"]) == ("800", "3")


def test_learning_reads_twenty_attempts_however_many_there_are(database: Database) -> None:
    """Expect one statement that meets no more rows in the middle of 8,000 attempts of two jobs."""
    for name in ("orders", "returns"):
        register(database, 1, name=name)
        plan(database, limits(), name=name)
    execute(database, "DELETE FROM batch_pipeline.batch_state")
    execute(database, "DELETE FROM batch_pipeline.batch")
    execute(
        database,
        "INSERT INTO batch_pipeline.batch (job_id, first_id, last_id, weight, item_count, config) "
        """SELECT job.id, n, n, 10, 1, '{"max_weight": "10"}' """
        "FROM generate_series(1, 4000) n, batch_pipeline.job",
    )
    execute(
        database,
        "INSERT INTO batch_pipeline.attempt (batch_id, number, token, liveness_key, status, run_id,"
        " lease_until, started_at, finished_at, generation, publish_number) "
        "SELECT id, 1, gen_random_uuid(), 0, 'succeeded', 'r', now(), now() - interval '5 s',"
        " now(), 1, first_id FROM batch_pipeline.batch",
    )
    execute(database, "UPDATE batch_pipeline.job SET publish_count = 4000")
    execute(database, "ANALYZE batch_pipeline.batch, batch_pipeline.attempt, batch_pipeline.job")
    with recorded(database.engine) as statements:
        learned = database.learned_limits.of_stream("orders", BOUNDS).learned
    assert learned is not None
    assert learned.attempts == 5
    assert learned.weight_per_second == pytest.approx(2)
    of_attempts = [one for one in statements if "publish_number" in one[0]]
    assert len(of_attempts) == 1
    assert rows_touched(database.engine, of_attempts) < 100


def test_status_and_explain_tell_the_limit_and_why(database: Database, run: Run) -> None:
    """Expect that nothing is known at first, then the speed, and of a batch what it was cut by."""
    register(database, 1)
    assert "limit       at most 1.6 KiB; how much takes 1m is not known yet" in run("status").stdout
    execute(database, "DELETE FROM batch_pipeline.item")
    register(database, 640)
    held = run("plan", "orders").stdout
    assert "batches planned: 3" in held
    assert "More is planned once these have shown how long they take" in held
    for status in database.batches.statuses("orders"):
        publish_in(database, status.batch, 160)
    (next_one,) = plan(database, BOUNDS)[:1]
    publish_in(database, next_one, 80)
    shown = run("status").stdout
    assert "limit       at most 600 B; 1m are 600 B, at 10 B/s\n" in shown
    assert "by the last batches that were full or took longer: 4" in shown
    (report,) = json.loads(run("status", "--json").stdout)["streams"]
    assert report["learned_limit"]["weight_per_second"] == 10
    assert "at most 1.6 KiB; how much takes 1m is not known yet" in run("explain", "1").stdout
    shown = run("explain", "481").stdout
    assert (
        "3 plan      batch of 800 B, items: 80\n              at most 800 B; 1m are 600 B" in shown
    )
    assert "by the last batches that were full or took longer: 3" in shown


def test_limit_at_its_lowest_bound_is_told_outright(database: Database, run: Run) -> None:
    """Expect `status` to say that it cannot be lower, and what would change that."""
    published(database, *[600] * 8)
    shown = run("status").stdout
    assert "limit       at most 25 B; 1m are " in shown
    least = "this is the least, a 64th of max_weight: batches take longer than 1m even so"
    assert f"              {least}; lower max_weight, or raise target_seconds\n" in shown
    (report,) = json.loads(run("status", "--json").stdout)["streams"]
    assert report["learned_limit"]["is_least"] is True
    assert report["learned_limit"]["sentences"][-1].startswith(least)
