"""Metric names: the dashboard queries served metrics."""

import json
import re
from importlib.resources import files
from typing import Any

from prometheus_client.metrics_core import Metric

from batch_pipeline.metrics import Scrape, families, up
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
    """Return all metrics for a stream with two planned batches, by name."""
    totals = Totals()
    totals.begin(["orders"])
    scrape = Scrape(
        streams=("orders",),
        unfinished=(WAITING,),
        published={},
        not_planned={"orders": not_planned},
        totals=totals,
    )
    return {metric.name: metric for metric in (up(is_up=True), *families(scrape))}


def expressions(value: Any) -> list[str]:
    """Collect the queries of a dashboard."""
    if isinstance(value, dict):
        queries = [value[key] for key in ("expr", "definition") if key in value]
        return queries + [query for inner in value.values() for query in expressions(inner)]
    if isinstance(value, list):
        return [query for inner in value for query in expressions(inner)]
    return []


def test_dashboard_queries_use_served_metrics() -> None:
    text = (PACKAGE / "docs/_static/grafana-dashboard.json").read_text(encoding="utf-8")
    queried = {
        name
        for query in expressions(json.loads(text))
        for name in re.findall(r"batch_pipeline_\w+", query)
    }
    metrics = served(NotPlanned()).values()
    assert queried <= {sample.name for metric in metrics for sample in metric.samples}
    assert len(queried) >= 9


def test_oldest_waiting_item_may_be_in_no_batch() -> None:
    metrics = served(NotPlanned(items=2, weight=20, oldest_seconds=90.0))
    assert metrics["batch_pipeline_backlog_oldest_seconds"].samples[0].value == 90


def test_unreadable_meta_table_omits_the_backlog() -> None:
    metrics = served(None)
    assert metrics["batch_pipeline_meta_table_up"].samples[0].value == 0
    assert metrics["batch_pipeline_backlog_items"].samples == []
    assert metrics["batch_pipeline_unfinished_batches"].samples[0].value == 2
