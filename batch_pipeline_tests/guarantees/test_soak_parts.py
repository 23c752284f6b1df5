"""What a soak is made of: what lands, when something is killed, how quarters are compared."""

import json
from pathlib import Path

import pytest

from batch_pipeline_tests.guarantees.soak.arrivals import Arrivals
from batch_pipeline_tests.guarantees.soak.backlog import Backlog
from batch_pipeline_tests.guarantees.soak.faults import WORK, Due, Kind, schedule
from batch_pipeline_tests.guarantees.soak.feeds import FEEDS, TORN
from batch_pipeline_tests.guarantees.soak.meter import Held
from batch_pipeline_tests.guarantees.soak.samples import Sample, Samples, growth


def sample(seconds: float, *, landed: int, published: int, memory: float = 1) -> Sample:
    """Make a sample of one process of Spark."""
    told = Backlog(
        registered=landed,
        published=published,
        not_loaded=0,
        unfinished_runs=0,
        connections=1,
        dead_rows=0,
        live_rows=0,
        database_bytes=0,
    )
    held = {("Spark", 7, 0.0): Held(processes=1, memory=memory)}
    return Sample(seconds=seconds, processes=held, landed=landed, backlog=told, temporary_files=0)


def faults(**options: float) -> list[Due]:
    """Return the schedule of half an hour."""
    times = {"every_seconds": 20, "parts_until_seconds": 1_800} | options
    return [*schedule(1_800, seed=8, **times)]


def test_schedule_of_faults_hits_parts_early_and_work_until_the_last_tenth() -> None:
    every = faults(parts_until_seconds=600)
    assert {due.kind for due in every if due.seconds < 604} == {*Kind}
    assert {due.kind for due in every if due.seconds > 604} == {*WORK}
    assert 1_500 < every[-1].seconds < 1_624


def test_arrivals_that_are_finished_have_every_record_once(tmp_path: Path) -> None:
    arrivals = Arrivals(tmp_path, FEEDS, seed=8)
    for second in range(100):
        arrivals.catch_up(second)
    arrivals.finish()
    events = [*(tmp_path / "events").iterdir()]
    lines = [line for path in events for line in path.read_text().splitlines()]
    ids = [json.loads(line)["id"] for line in lines if TORN not in line]
    told = arrivals.landed["events"]
    assert sorted(ids) == [*told.good_ids]
    assert (len(events), len(lines) - len(ids)) == (told.files, told.bad)
    assert {path.suffix for path in events} == {".jsonl"}
    assert 26 <= told.files <= 30
    assert told.old_files > 0


def test_growth_of_quarters_is_their_medians_and_what_an_hour_adds() -> None:
    held = [(minute * 60.0, 100 + minute / 6) for minute in range(0, 61, 5)]
    held[1] = (300.0, 9_999.0)
    found = growth(held)
    assert found.first == pytest.approx(101.667, abs=0.01)
    assert found.last == pytest.approx(109.167, abs=0.01)
    assert found.an_hour == pytest.approx(10, abs=0.1)


def test_samples_of_a_part_that_was_replaced_compare_the_longest_life() -> None:
    """The first tenth of a process's life is left out."""
    samples = [sample(at, landed=0, published=0, memory=100 + at) for at in range(20)]
    other = {("Spark", 8, 5.0): Held(processes=1, memory=5)}
    young = Sample(seconds=21, processes=other, landed=0, backlog=None, temporary_files=0)
    found = Samples([*samples, young]).of_oldest("Spark", lambda held: held.memory)
    assert found is not None
    assert (found.first, found.last) == (103.5, 117.5)
    assert Samples([young]).of_oldest("Spark", lambda held: held.memory) is None


def test_samples_of_a_backlog_tell_its_size_and_its_age() -> None:
    samples = Samples(
        [
            sample(0, landed=0, published=0),
            sample(10, landed=4, published=0),
            sample(20, landed=5, published=3),
            sample(30, landed=6, published=5),
        ]
    )
    assert samples.largest_backlog() == 4
    assert samples.largest_age() == 20
