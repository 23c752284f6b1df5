"""Tests of the load of a soak, of its faults and of its measurements."""

import json
from pathlib import Path

import pytest

from batch_pipeline_tests.guarantees.soak.faults import COMMAND_WORDS, WORKERS, schedule
from batch_pipeline_tests.guarantees.soak.load import FEEDS, MALFORMED_MARKER, Arrivals
from batch_pipeline_tests.guarantees.soak.measurements import (
    Sample,
    growth,
    max_age_seconds,
    max_backlog,
    of_oldest,
)


def sample(seconds: float, *, landed: int = 0, published: int = 0, memory: float = 1) -> Sample:
    return Sample(
        seconds=seconds,
        landed=landed,
        processes={("Spark", 7, 0.0): {"MiB": memory}},
        database={"published items": published},
        folders={},
    )


def test_fault_schedule_hits_services_first_and_ends_before_last_tenth() -> None:
    due = [*schedule(1_800, every_seconds=20, services_until_seconds=600, seed=8)]
    assert {kind for seconds, kind in due if seconds < 604} == {*COMMAND_WORDS}
    assert {kind for seconds, kind in due if seconds > 604} == {*WORKERS}
    assert 1_500 < due[-1][0] < 1_624


def test_finished_arrivals_contain_every_record_once(tmp_path: Path) -> None:
    arrivals = Arrivals(tmp_path, FEEDS, seed=8)
    for second in range(100):
        arrivals.catch_up(second)
    arrivals.finish()
    events = [*(tmp_path / "events").iterdir()]
    lines = [line for path in events for line in path.read_text().splitlines()]
    ids = [json.loads(line)["id"] for line in lines if MALFORMED_MARKER not in line]
    landed = arrivals.landed["events"]
    assert sorted(ids) == [*landed.good_ids]
    assert (len(events), len(lines) - len(ids)) == (landed.files, landed.bad)
    assert {path.suffix for path in events} == {".jsonl"}
    assert 26 <= landed.files <= 30
    assert landed.old_files > 0


def test_growth_compares_medians_of_quarters() -> None:
    series = [(minute * 60.0, 100 + minute / 6) for minute in range(0, 61, 5)]
    series[1] = (300.0, 9_999.0)
    change = growth(series)
    assert change.first == pytest.approx(101.667, abs=0.01)
    assert change.last == pytest.approx(109.167, abs=0.01)
    assert change.per_hour == pytest.approx(10, abs=0.1)


def test_of_oldest_returns_longest_series_without_first_tenth() -> None:
    young = Sample(
        seconds=21, landed=0, processes={("Spark", 8, 5.0): {"MiB": 5}}, database={}, folders={}
    )
    samples = [*(sample(at, memory=100 + at) for at in range(20)), young]
    change = growth(of_oldest(samples, "Spark", "MiB"))
    assert (change.first, change.last) == (103.5, 117.5)
    assert of_oldest([young], "Spark", "MiB") == []


def test_backlog_has_size_and_age() -> None:
    counts = ((0, 0), (4, 0), (5, 3), (6, 5))
    samples = [
        sample(10 * number, landed=landed, published=published)
        for number, (landed, published) in enumerate(counts)
    ]
    assert max_backlog(samples) == 4
    assert max_age_seconds(samples) == 20
