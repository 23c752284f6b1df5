"""Names of metrics: the served ones are those of the page and the dashboard."""

import json
import re
from importlib.resources import files
from typing import Any

from prometheus_client.metrics_core import Metric

from batch_pipeline.metrics.families import Scrape, families, up
from batch_pipeline.model.batch import BatchState
from batch_pipeline.model.job import JobKind
from batch_pipeline.model.status import NotPlanned, Totals, UnfinishedBatches

PACKAGE = files("batch_pipeline")
WAITING = UnfinishedBatches(
    stream="orders",
    kind=JobKind.INCREMENTAL,
    state=BatchState.PLANNED,
    batches=2,
    items=6,
    weight=60,
    oldest_seconds=40.0,
)


def served(not_planned: NotPlanned | None) -> dict[str, Metric]:
    """Return all metrics of a stream with two planned batches, by name."""
    totals = Totals()
    totals.begin(["orders"])
    scrape = Scrape(
        streams=("orders",),
        unfinished=(WAITING,),
        published={},
        not_planned={"orders": not_planned},
        totals=totals,
    )
    return {one.name: one for one in (up(is_up=True), *families(scrape))}


def sample_names() -> set[str]:
    """Return the names of the samples that Prometheus stores."""
    return {sample.name for one in served(NotPlanned()).values() for sample in one.samples}


def expressions(value: Any) -> list[str]:
    """Collect the queries of a dashboard."""
    if isinstance(value, dict):
        found = [value[key] for key in ("expr", "definition") if key in value]
        return found + [one for inner in value.values() for one in expressions(inner)]
    if isinstance(value, list):
        return [one for inner in value for one in expressions(inner)]
    return []


def test_queries_of_the_dashboard_name_served_metrics() -> None:
    text = (PACKAGE / "metrics/grafana-dashboard.json").read_text(encoding="utf-8")
    asked = {
        name
        for one in expressions(json.loads(text))
        for name in re.findall(r"batch_pipeline_\w+", one)
    }
    assert asked <= sample_names()
    assert len(asked) >= 9


def test_page_on_metrics_lists_every_metric() -> None:
    page = (PACKAGE / "docs/reference/metrics.md").read_text(encoding="utf-8")
    listed = {
        name if sample == "" else name + sample
        for name, sample in re.findall(r"`(\w+?)(_total|)`", page)
    }
    names = {
        name.removeprefix("batch_pipeline_") + ("_total" if one.type == "counter" else "")
        for name, one in served(NotPlanned()).items()
    }
    assert names <= listed


def test_backlog_sums_batches_and_items_without_a_batch() -> None:
    found = served(NotPlanned(items=2, weight=20, oldest_seconds=90.0))
    values = {
        name.removeprefix("batch_pipeline_backlog_"): one.samples[0].value
        for name, one in found.items()
        if "_backlog_" in name
    }
    assert values == {"items": 8, "bytes": 80, "oldest_seconds": 90.0}


def test_unreadable_table_has_no_backlog_rather_than_half() -> None:
    found = served(None)
    assert found["batch_pipeline_meta_table_up"].samples[0].value == 0
    assert found["batch_pipeline_backlog_items"].samples == []
    assert found["batch_pipeline_unfinished_batches"].samples[0].value == 2
