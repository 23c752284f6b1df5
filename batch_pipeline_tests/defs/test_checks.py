"""Asset checks of a stream: what they say of good batches, and of each kind of trouble."""

import dagster as dg
import pytest

from batch_pipeline.defs.names import LAUNCH_TAG, batches_key
from batch_pipeline.model.batch import AttemptStatus
from batch_pipeline.model.checks import Check, CheckResult
from batch_pipeline.model.schema import Column, ColumnType, Misfit
from batch_pipeline.pipeline.verify import Scope, verify_stream
from batch_pipeline_tests.defs.checks_fixture import (
    answers,
    failed,
    numbers,
    path_of,
    publish,
    publish_all,
    said_in,
)
from batch_pipeline_tests.defs.defs_fixture import DefsScene
from batch_pipeline_tests.seeds import claimed, execute, register

ERROR, WARN = dg.AssetCheckSeverity.ERROR, dg.AssetCheckSeverity.WARN
FIRST, SECOND = "00000001-00000003", "00000004-00000006"


CHECKSUMS = {"resources": {"batch_pipeline_checks": {"config": {"checksums": True}}}}


def verdict(scene: DefsScene, check: Check, *, run: int = 1) -> CheckResult:
    """Evaluate one of the checks that Dagster does not have."""
    scope = Scope(kinds=scene.batches.kinds, run=run)
    [result] = verify_stream(
        scene.database, scene.stream, [check], scope, scene.pipeline.meta_table
    )
    return result


def test_checks_of_a_stream_without_published_batches_pass_and_say_so(scene: DefsScene) -> None:
    """Expect every check to pass, those of batches because nothing is published."""
    found = answers(scene)
    assert failed(found) == []
    assert sorted(found) == [
        "backfill.conservation",
        "backfill.part_files",
        "backfill.quarantine",
        "batches.conservation",
        "batches.part_files",
        "batches.quarantine",
        "files.backlog",
    ]
    assert "Nothing to check yet" in str(found["batches.part_files"].description)


def test_checks_of_published_batches_that_are_in_order_pass(scene: DefsScene) -> None:
    """Expect them to tell how much they have looked at."""
    publish_all(scene)
    found = answers(scene)
    assert failed(found) == []
    assert numbers(found["batches.part_files"], "batches_checked", "files_checked") == [4, 4]
    assert numbers(found["batches.part_files"], "size_bytes", "problems") == [400, 0]
    assert numbers(found["batches.quarantine"], "records_read") == [60]
    coverage = verdict(scene, Check.COVERAGE).numbers
    assert (coverage["batches_checked"], coverage["batches_compared"]) == (4, 4)
    assert numbers(found["files.backlog"], "items_unpublished") == [0]
    assert failed(answers(scene, run_config=CHECKSUMS)) == []


def test_missing_part_file_fails_its_check_and_no_other(scene: DefsScene) -> None:
    """Expect an error that blocks, names batch and file, and says what to do."""
    path = path_of(publish_all(scene)[1])
    path.unlink()
    found = answers(scene)
    assert failed(found) == ["batches.part_files"]
    one = found["batches.part_files"]
    assert (one.severity, one.blocking) == (ERROR, True)
    assert numbers(one, "batches_checked", "batches_wrong") == [4, 1]
    said = str(one.description)
    assert f"batch {SECOND}, generation 1: {path} is missing" in said
    assert "Materialize the partition again" in said


def test_part_file_that_is_cut_short_fails_by_its_size(scene: DefsScene) -> None:
    """Expect both sizes."""
    path = path_of(publish_all(scene)[0])
    path.write_bytes(path.read_bytes()[:60])
    one = answers(scene)["batches.part_files"]
    assert not one.passed
    assert f"{path} has 60 B, published: 100 B" in str(one.description)


def test_changed_byte_is_found_by_the_check_that_reads(scene: DefsScene) -> None:
    """Expect the cheap check to pass and the one of checksums to fail."""
    path = path_of(publish_all(scene)[0])
    path.write_bytes(b"X" + path.read_bytes()[1:])
    assert failed(answers(scene)) == []
    found = answers(scene, run_config=CHECKSUMS)
    assert failed(found) == ["batches.part_files"]
    assert "has the SHA-256" in str(found["batches.part_files"].description)


def test_replaced_generation_is_not_missed(scene: DefsScene) -> None:
    """Expect only the newest generation of a batch to be looked at."""
    one = scene.database.batches.batch("orders", FIRST)
    path_of(publish(scene, one)).unlink()
    assert failed(answers(scene)) == ["batches.part_files"]
    publish(scene, one)
    assert failed(answers(scene)) == []


def test_scope_bounds_what_is_looked_at(scene: DefsScene) -> None:
    """Expect the newest batches first, as many as were asked for."""
    publish_all(scene)
    config = {"resources": {"batch_pipeline_checks": {"config": {"newest": 2}}}}
    one = answers(scene, run_config=config)["batches.part_files"]
    assert numbers(one, "batches_checked") == [2]
    everything = {"resources": {"batch_pipeline_checks": {"config": {"newest": 0}}}}
    one = answers(scene, run_config=everything)["batches.part_files"]
    assert numbers(one, "batches_checked") == [4]


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        (
            "UPDATE batch_pipeline.part_file SET records = 14 WHERE uri LIKE '%000004-%'",
            "records written: 15, 14 in its part files",
        ),
        (
            "UPDATE batch_pipeline.attempt_item SET read = 6 WHERE item_id = 5",
            "read is not written + filtered + quarantined for the items 5",
        ),
        (
            "UPDATE batch_pipeline.attempt_item SET read = 4, written = 4 WHERE item_id = 5",
            "records read: 15, 14 by its items",
        ),
    ],
)
def test_records_that_are_not_conserved_fail(scene: DefsScene, statement: str, said: str) -> None:
    """Expect an error that blocks and says where the counters disagree."""
    publish_all(scene)
    drop = "ALTER TABLE batch_pipeline.attempt_item DROP CONSTRAINT attempt_item_records_conserved"
    execute(scene.database, drop)
    execute(scene.database, statement)
    found = answers(scene)
    assert failed(found) == ["batches.conservation"]
    one = found["batches.conservation"]
    assert (one.severity, one.blocking) == (ERROR, True)
    assert f"batch {SECOND}, generation 1: {said}" in str(one.description)


def test_quarantined_records_above_the_limit_warn(scene: DefsScene) -> None:
    """Expect the share over the last batches, and the batch with the largest."""
    publish_all(scene)
    publish(scene, scene.database.batches.batch("orders", FIRST), quarantined=5)
    found = answers(scene)
    assert failed(found) == ["batches.quarantine"]
    one = found["batches.quarantine"]
    assert one.severity is WARN
    assert numbers(one, "records_quarantined", "records_read") == [5, 65]
    assert f"batch {FIRST} with 5 of 20" in str(one.description)


def test_schema_that_changed_with_the_newest_batch_warns(scene: DefsScene) -> None:
    """Expect what changed and the record that caused it, until the next batch has the same."""
    batches = [status.batch for status in scene.database.batches.statuses("orders")]
    publish(scene, batches[0])
    note = Column(name="note", type=ColumnType.STRING)
    misfit = Misfit(column=note, item_id=4, location="file:///landing/orders-0004.csv", line=7)
    scene.database.schemas.widen("orders", [note], text_source=True, because=[misfit])
    publish(scene, batches[1], schema_version=2)
    result = verdict(scene, Check.SCHEMA_DRIFT)
    assert not result.passed
    said = result.sentence
    assert f"batch {SECOND} has schema version 2, batch {FIRST} version 1" in said
    assert "added `note` (string), first in file:///landing/orders-0004.csv, line 7" in said
    publish(scene, batches[2], schema_version=2)
    assert verdict(scene, Check.SCHEMA_DRIFT).passed


def test_run_sees_a_schema_change_amid_its_batches(scene: DefsScene) -> None:
    """Expect the schema to be compared with the one before the run, else with the batch before."""
    batches = [status.batch for status in scene.database.batches.statuses("orders")]
    publish(scene, batches[0])
    scene.database.schemas.widen(
        "orders", [Column(name="note", type=ColumnType.STRING)], text_source=True
    )
    publish(scene, batches[1], schema_version=2)
    publish(scene, batches[2], schema_version=2)
    assert not verdict(scene, Check.SCHEMA_DRIFT, run=2).passed
    assert verdict(scene, Check.SCHEMA_DRIFT).passed


def test_batch_that_waits_for_too_long_warns(scene: DefsScene) -> None:
    """Expect its age against the limit of an hour."""
    late = "UPDATE batch_pipeline.batch SET planned_at = now() - interval '5 hours' "
    execute(scene.database, late + "WHERE first_id = 4")
    found = answers(scene)
    assert failed(found) == ["files.backlog"]
    one = found["files.backlog"]
    assert (one.severity, numbers(one, "items_unpublished")) == (WARN, [12])
    assert "the oldest for 5 hours; allowed: 60 minutes" in str(one.description)
    assert f"batch {SECOND}, planned 5 hours ago" in str(one.description)


def test_item_without_a_batch_that_waits_for_too_long_warns(scene: DefsScene) -> None:
    """Expect items that are not planned to count as waiting."""
    publish_all(scene)
    register(scene.database, 1, first=13)
    old = "UPDATE batch_pipeline.item SET registered_at = now() - interval '3 days' WHERE id = 13"
    execute(scene.database, old)
    one = answers(scene)["files.backlog"]
    assert (one.passed, numbers(one, "items_unpublished")) == (False, [1])
    assert "the oldest for 3 days" in str(one.description)
    assert "items that are in no batch yet" in str(one.description)


def test_batch_that_is_failed_for_too_long_warns(scene: DefsScene) -> None:
    """Expect its error, and nothing of one that has just failed."""
    with claimed(scene.database, scene.database.batches.batch("orders", FIRST)) as attempt:
        scene.database.attempts.fail(attempt, "line 3 is not csv", AttemptStatus.FAILED)
    assert failed(answers(scene)) == []
    execute(scene.database, "UPDATE batch_pipeline.attempt SET finished_at = now() - interval '2h'")
    one = answers(scene)["files.backlog"]
    assert (one.passed, numbers(one, "batches_stuck")) == (False, [1])
    assert f"batch {FIRST} (line 3 is not csv)" in str(one.description)


def test_item_that_its_published_batch_did_not_see_warns(scene: DefsScene) -> None:
    """Expect the id and the command that plans it; nothing is planned by the check."""
    publish(scene, scene.database.batches.batch("orders", FIRST), unseen=1)
    result = verdict(scene, Check.COVERAGE)
    assert (result.passed, result.is_severe, result.numbers["items_late"]) == (False, False, 1)
    assert "items 3, which appeared after their ids had been planned" in result.sentence
    assert scene.database.batches.late_statuses("orders") == []


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        (
            "UPDATE batch_pipeline.batch SET superseded_at = now() WHERE first_id = 4",
            "ids 4..6 are planned and in no live batch",
        ),
        (
            "UPDATE batch_pipeline.batch SET superseded_at = now() WHERE first_id = 10",
            "ids 10..12 are planned and in no live batch",
        ),
        (
            "UPDATE batch_pipeline.batch SET last_id = 8 WHERE first_id = 4",
            "ids 7..8 are in two live batches",
        ),
    ],
)
def test_ranges_that_do_not_tile_warn(scene: DefsScene, statement: str, said: str) -> None:
    """Expect holes and overlaps of live batches, with their ids."""
    drop = "ALTER TABLE batch_pipeline.batch DROP CONSTRAINT batch_ranges_do_not_overlap"
    execute(scene.database, drop)
    execute(scene.database, statement)
    result = verdict(scene, Check.COVERAGE)
    assert not result.passed
    assert said in result.sentence


def test_run_that_encodes_answers_the_cheap_checks_in_its_own_step(scene: DefsScene) -> None:
    """Expect the answers without a step of their own, red for a file that is gone already."""
    path_of(publish_all(scene)[3]).unlink()
    scene.tick("orders_new_files")
    found = answers(scene, "orders_encode", partition_key=FIRST, tags={LAUNCH_TAG: "new"})
    assert sorted(found) == [
        "batches.conservation",
        "batches.part_files",
        "batches.quarantine",
    ]
    assert failed(found) == ["batches.part_files"]


def test_good_run_hides_no_damage_that_is_on_record(
    scene: DefsScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expect a run to look further back than at its own batch once a check is red."""
    monkeypatch.setattr("batch_pipeline.defs.checks._RECENT_BATCHES", 1)
    path = path_of(publish_all(scene)[0])
    scene.tick("orders_new_files")
    path.unlink()
    how = {"partition_key": FIRST, "tags": {LAUNCH_TAG: "new"}}
    assert failed(answers(scene, "orders_encode", **how)) == []
    assert failed(answers(scene)) == ["batches.part_files"]
    assert failed(answers(scene, "orders_encode", **how)) == ["batches.part_files"]
    publish(scene, scene.database.batches.batch("orders", FIRST))
    assert failed(answers(scene, "orders_encode", **how)) == []


def test_run_with_a_failed_batch_still_answers(scene: DefsScene) -> None:
    """Expect the answers beside the failure."""
    publish_all(scene)
    scene.instance.add_dynamic_partitions("orders.batches", ["1-3"])
    job = scene.definitions.resolve_job_def("orders_encode")
    result = job.execute_in_process(
        instance=scene.instance, partition_key="1-3", raise_on_error=False
    )
    assert not result.success
    found = said_in(scene, result.run_id)
    assert failed(found) == []
    assert len(found) == 3


def test_materializing_by_hand_answers_without_steps_for_checks(scene: DefsScene) -> None:
    """Expect a run of the asset with all its checks to answer the cheap ones and skip the rest."""
    publish_all(scene)
    scene.tick("orders_new_files")
    job = scene.definitions.resolve_implicit_global_asset_job_def()
    result = job.execute_in_process(
        instance=scene.instance,
        partition_key=FIRST,
        asset_selection=[batches_key(scene.stream)],
        tags={LAUNCH_TAG: "new"},
    )
    assert result.success
    assert len(said_in(scene, result.run_id)) == 3
