"""Tests of the load of a soak, of its faults and of its measurements."""

import json
from dataclasses import replace
from pathlib import Path

from batch_pipeline_tests.acceptance.live_dev import SERVICES, WORKERS
from batch_pipeline_tests.guarantees.soak.faults import schedule
from batch_pipeline_tests.guarantees.soak.load import FEEDS, MALFORMED_MARKER, Arrivals
from batch_pipeline_tests.guarantees.soak.measurements import (
    Sample,
    growth,
    max_backlog,
    of_oldest,
)


def test_fault_schedule_hits_services_first_and_ends_before_last_tenth() -> None:
    due = [*schedule(1_800, every_seconds=20, services_until_seconds=600, seed=8)]
    assert {kind for seconds, kind in due if seconds < 604} == {*SERVICES, *WORKERS}
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


def test_measurements_compare_quarters_and_find_the_largest_backlog() -> None:
    """The first tenth of the oldest process of a part, and outliers, do not count."""
    samples = [
        Sample(
            seconds=at,
            landed=min(at, 4),
            processes={("Spark", 7, 0.0): {"MiB": 100 + at}},
            database={"published items": max(at - 2, 0)},
        )
        for at in range(20)
    ]
    samples[3].processes["Spark", 7, 0.0]["MiB"] = 9_999
    young = replace(samples[-1], processes={("Spark", 8, 5.0): {"MiB": 5}})
    change = growth(of_oldest([*samples, young], "Spark", "MiB"))
    assert (change.first, change.last) == (104.5, 117.5)
    assert of_oldest([young], "Spark", "MiB") == []
    assert max_backlog(samples) == 2
