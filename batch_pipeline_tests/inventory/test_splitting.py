"""Poison items: batches that fail are halved until the item that makes them fail is alone."""

from collections.abc import Callable
from math import ceil, log2

import pytest

from batch_pipeline.inventory.acquire import AcquireRequest
from batch_pipeline.inventory.database import Database
from batch_pipeline.inventory.meta_tables.reflected_table import ReflectedMetaTable
from batch_pipeline.inventory.meta_tables.sources import MetaSource, read_items
from batch_pipeline.inventory.meta_tables.watermarks import choose_watermark
from batch_pipeline.inventory.planning import split_batch
from batch_pipeline.model.batch import Attempt, AttemptStatus, Batch, BatchState, BatchStatus
from batch_pipeline.model.errors import BatchSupersededError, ConfigurationError
from batch_pipeline.model.id_range import IdRange
from batch_pipeline.model.job import JobTerms
from batch_pipeline_tests.concurrency import together
from batch_pipeline_tests.factories import limits
from batch_pipeline_tests.inventory.invariants import check_invariants
from batch_pipeline_tests.inventory.meta_tables.user_tables import delete, insert
from batch_pipeline_tests.seeds import claimed, execute, plan, publish, query, register


def _source(files: ReflectedMetaTable, items: int) -> MetaSource:
    insert(files, dict.fromkeys(range(1, items + 1), 10))
    return MetaSource(table=files, choice=choose_watermark(files))


def _wish(max_count: int, **terms: object) -> AcquireRequest:
    facts = {"name": "import", "meta_table": "ops.files", "bisect": True, **terms}
    bounds = limits(max_weight=10_000, max_count=max_count)
    return AcquireRequest(terms=JobTerms(**facts), limits=bounds, config={"origin": "test"})  # type: ignore[arg-type] # overrides by name


def _work_off(
    database: Database, source: MetaSource, wish: AcquireRequest, is_bad: Callable[[int], bool]
) -> list[Attempt]:
    """Acquire until nothing is left; batches with a bad item fail."""
    tried: list[Attempt] = []
    while (attempt := database.acquisitions.acquire(wish, source)) is not None:
        tried.append(attempt)
        assert len(tried) < 200, "it does not end"
        ids = [item.id for item in read_items(database.engine, source.table, attempt.batch)]
        if any(map(is_bad, ids)):
            database.attempts.fail(attempt, "a bad item", AttemptStatus.FAILED)
        else:
            database.attempts.succeed(attempt, result=ids, logging=None, seen=None)
    return tried


def _dead_alone(database: Database, table: ReflectedMetaTable) -> dict[int, BatchStatus]:
    """Return the dead batches of the job by their only item."""
    dead = [one for one in database.jobs.unfinished("import") if one.state is BatchState.DEAD]
    items = [read_items(database.engine, table, one.batch) for one in dead]
    return {only.id: one for one, [only] in zip(dead, items, strict=True)}


def _published_ids(database: Database) -> list[int]:
    results = query(database, "SELECT result FROM batch_pipeline.attempt WHERE result IS NOT NULL")
    return sorted(item_id for (ids,) in results for item_id in ids)


def _live(database: Database) -> list[tuple[int, int, str]]:
    rows = query(
        database,
        "SELECT first_id, last_id, state FROM batch_pipeline.batch JOIN batch_pipeline.batch_state "
        "ON batch_id = id WHERE superseded_at IS NULL ORDER BY first_id",
    )
    return [(first, last, state) for first, last, state in rows]


@pytest.mark.parametrize("bad", [1, 37, 50, 51, 100])
def test_bisect_of_one_bad_item_in_a_hundred_publishes_the_others_once(
    database: Database, files: ReflectedMetaTable, bad: int
) -> None:
    """Expect one item dead, 99 published once, and 3 + 2 * 7 + 2 attempts at most."""
    source = _source(files, 100)
    tried = _work_off(database, source, _wish(100), lambda item_id: item_id == bad)
    assert _published_ids(database) == [one for one in range(1, 101) if one != bad]
    [(first, last)] = [(first, last) for first, last, state in _live(database) if state == "dead"]
    assert (first, last) == (bad, bad)
    assert len(tried) <= 3 + 2 * ceil(log2(100)) + 2
    check_invariants(database)
    [(item_id, found)] = _dead_alone(database, source.table).items()
    assert (item_id, found.error) == (bad, "a bad item")
    assert database.acquisitions.acquire(_wish(100), source) is None


def test_bisect_of_several_bad_items_in_several_batches_isolates_each(
    database: Database, files: ReflectedMetaTable
) -> None:
    """Expect bad items beside each other and far apart to end alone, all others published."""
    source, bad = _source(files, 40), {3, 4, 17, 40}
    _work_off(database, source, _wish(15), lambda item_id: item_id in bad)
    assert _published_ids(database) == sorted(set(range(1, 41)) - bad)
    assert set(_dead_alone(database, source.table)) == bad
    check_invariants(database)


def test_bisect_is_left_out_by_jobs_that_do_not_ask_for_it(
    database: Database, files: ReflectedMetaTable
) -> None:
    """Expect the batch to be tried three times and to stay whole, while the rest goes on."""
    source = _source(files, 10)
    tried = _work_off(database, source, _wish(5, bisect=False), lambda item_id: item_id == 2)
    assert [attempt.batch.id_range.first_id for attempt in tried] == [1, 6, 1, 1]
    assert _live(database) == [(1, 5, "dead"), (6, 10, "published")]
    check_invariants(database)


def test_bisect_under_rivals_publishes_every_good_item_once(
    database: Database, rival: Database, files: ReflectedMetaTable
) -> None:
    """Expect two workers that halve the same job to neither lose nor double an item."""
    sources = [_source(files, 60), MetaSource(table=files, choice=choose_watermark(files))]
    bad = {7, 8, 31, 60}
    ended = together(
        lambda: _work_off(database, sources[0], _wish(20), lambda item_id: item_id in bad),
        lambda: _work_off(rival, sources[1], _wish(20), lambda item_id: item_id in bad),
    )
    assert [one for one in ended if isinstance(one, Exception)] == []
    _work_off(database, sources[0], _wish(20), lambda item_id: item_id in bad)
    assert _published_ids(database) == sorted(set(range(1, 61)) - bad)
    assert set(_dead_alone(database, files)) == bad
    check_invariants(database)


def test_bisect_after_interruptions_counts_them_as_tries_of_the_half(
    database: Database, files: ReflectedMetaTable
) -> None:
    """Expect a half to be split at its first failure, but only at its third interruption."""
    source, wish = _source(files, 4), _wish(4, max_attempts=3)
    for status in [AttemptStatus.FAILED] * 3 + [AttemptStatus.ABANDONED] * 3:
        attempt = database.acquisitions.acquire(wish, source)
        assert attempt is not None
        database.attempts.fail(attempt, "gone", status)
    assert _live(database) == [(1, 2, "dead"), (3, 4, "planned")]
    check_invariants(database)


def test_bisect_tiles_the_range_and_halves_what_is_still_there(
    database: Database, files: ReflectedMetaTable
) -> None:
    """Expect gaps of deleted rows to lie in the first half, weights and counts to be right."""
    insert(files, {10: 1, 20: 2, 30: 4, 40: 8, 50: 16})
    source = MetaSource(table=files, choice=choose_watermark(files))
    attempt = database.acquisitions.acquire(_wish(100), source)
    assert attempt is not None
    database.attempts.fail(attempt, "a bad item", AttemptStatus.FAILED)
    delete(files, files.uid == 20)
    first, second = database.jobs.split("import", attempt.batch.id, files)
    assert (first.id_range, first.weight, first.count) == (IdRange(first_id=10, last_id=39), 5, 2)
    assert (second.id_range, second.weight, second.count) == (
        IdRange(first_id=40, last_id=50),
        24,
        2,
    )
    assert query(database, "SELECT DISTINCT config FROM batch_pipeline.batch") == [
        ({"origin": "test"},)
    ]
    check_invariants(database)


def test_bisect_of_a_list_splits_the_list(database: Database, files: ReflectedMetaTable) -> None:
    """Expect all listed ids to be shared out, also one whose row is gone."""
    source = _source(files, 100)
    attempt = database.acquisitions.acquire(_wish(100), source)
    assert attempt is not None
    database.attempts.succeed(attempt, result=[], logging=None, seen=None)
    execute(
        database,
        "INSERT INTO batch_pipeline.job (name, meta_table, kind, parent_id) "
        "VALUES ('import.late', 'ops.files', 'late', 1)",
    )
    execute(
        database,
        "INSERT INTO batch_pipeline.batch "
        "(job_id, first_id, last_id, weight, item_count, config, item_ids) "
        "VALUES (2, 5, 90, 40, 5, '{}', '{5,6,50,77,90}')",
    )
    execute(database, "INSERT INTO batch_pipeline.batch_state VALUES (2, 2, 'planned')")
    delete(files, files.uid == 50)
    first, second = database.jobs.split("import", "5..90", files)
    assert (first.item_ids, first.weight, str(first.id_range)) == ((5, 6, 50), 20, "5..50")
    assert (second.item_ids, second.weight, str(second.id_range)) == ((77, 90), 20, "77..90")
    check_invariants(database)
    _work_off(database, source, _wish(100), lambda item_id: item_id == 77)
    [(item_id, found)] = _dead_alone(database, files).items()
    assert (item_id, found.batch.item_ids) == (77, (77,))
    check_invariants(database)


def test_bisect_by_hand_of_a_stream_makes_partitions_of_the_halves(database: Database) -> None:
    """Expect the halves under their own keys, the parent under none, and both to be published."""
    register(database, 5)
    [one] = plan(database, limits())
    first, second = database.jobs.split(
        "orders", one.key, database.meta_table("orders").reflected()
    )
    assert (first.key, first.weight) == ("00000001-00000003", 30)
    assert (second.key, second.weight) == ("00000004-00000005", 20)
    found = database.batches.batch("orders", second.key)
    assert found == second
    assert publish(database, first).generation == publish(database, second).generation == 1
    check_invariants(database)
    with pytest.raises(BatchSupersededError), claimed(database, one):
        pass
    check_invariants(database)


def test_bisect_of_one_item_names_it(database: Database) -> None:
    """Expect id and location in the message, and the batch to stay."""
    register(database, 1)
    [one] = plan(database, limits())
    with pytest.raises(ConfigurationError, match="cannot be split") as caught:
        split_batch(database.engine, one, database.meta_table("orders").reflected())
    assert "one item, 1 (file:///landing/orders-0001.csv)" in str(caught.value)
    assert f"batch-pipeline jobs retry orders --batch {one.id}" in str(caught.value)
    assert _live(database) == [(1, 1, "planned")]


def test_bisect_of_a_batch_without_items_is_refused(database: Database) -> None:
    """Expect a batch whose items were all deleted to stay."""
    register(database, 2)
    [one] = plan(database, limits())
    execute(database, "DELETE FROM batch_pipeline.item")
    with pytest.raises(ConfigurationError, match="none of its items is left"):
        split_batch(database.engine, one, database.meta_table("orders").reflected())


def test_bisect_of_a_running_published_or_split_batch_is_refused(
    database: Database, rival: Database
) -> None:
    """Expect each to be left as it is, with the state in the message."""
    register(database, 4)
    running, published = plan(database, limits(max_count=2))
    publish(database, published)
    table = database.meta_table("orders").reflected()
    with pytest.raises(ConfigurationError, match="published already"):
        split_batch(database.engine, published, table)
    with claimed(rival, running):
        with pytest.raises(ConfigurationError, match="an attempt on it is running"):
            split_batch(database.engine, running, table)
        rival.attempts.close_dead("orders")
    with claimed(database, running) as attempt:
        database.attempts.fail(attempt, "no", AttemptStatus.FAILED)
    split_batch(database.engine, running, table)
    with pytest.raises(ConfigurationError, match="superseded already"):
        split_batch(database.engine, running, table)
    check_invariants(database)


def test_bisect_by_two_at_once_happens_once(database: Database, rival: Database) -> None:
    """Expect one to split and the other to be told."""
    register(database, 4)
    [one] = plan(database, limits())

    def split(inventory: Database) -> tuple[Batch, Batch]:
        return split_batch(inventory.engine, one, inventory.meta_table("orders").reflected())

    results = together(lambda: split(database), lambda: split(rival))
    kinds = sorted(type(result).__name__ for result in results)
    assert kinds == ["ConfigurationError", "tuple"]
    check_invariants(database)


def test_bisect_passes_by_what_cannot_be_split(
    database: Database, files: ReflectedMetaTable
) -> None:
    """Expect a dead batch that shrank to one item to stand in nobody's way."""
    source, wish = _source(files, 4), _wish(2, max_attempts=1)
    for _ in range(2):
        attempt = database.acquisitions.acquire(wish, source)
        assert attempt is not None
        database.attempts.fail(attempt, "no", AttemptStatus.FAILED)
    delete(files, files.uid == 1)
    attempt = database.acquisitions.acquire(wish, source)
    assert attempt is not None
    assert attempt.batch.id_range == IdRange(first_id=3, last_id=3)
    check_invariants(database)
