"""Batches that an earlier release planned with learned limits."""

import json
from pathlib import Path

import pytest

from batch_pipeline.inventory.database import Database
from batch_pipeline_tests.cli.commands import Run, make_runner, run_json, write_stream
from batch_pipeline_tests.factories import limits
from batch_pipeline_tests.seeds import ORDER_ID, execute, plan, publish, query, register

LEARNED = {
    "max_weight": "800",
    "max_count": "10000",
    "min_weight": "0",
    "max_wait": "0:05:00",
    "target_seconds": "60.0",
    "most_weight": "1600",
    "weight_per_second": "nan",
    "learned_from": "5",
}


@pytest.fixture
def run(database_url: str, tmp_path: Path) -> Run:
    (tmp_path / "landing").mkdir()  # `plan` checks for new files
    write_stream(tmp_path, "orders", batch={"max_weight": 1_600, "max_count": 10_000})
    return make_runner(tmp_path, database_url)


def test_plan_continues_with_configured_limits_after_learned_ones(
    database: Database, run: Run
) -> None:
    register(database, 80)
    (old,) = plan(database, limits(max_weight=800, max_count=10_000))
    execute(
        database, "UPDATE batch_pipeline.batch SET config = :config", config=json.dumps(LEARNED)
    )
    database.schemas.widen("orders", [ORDER_ID], text_source=True)
    publish(database, old)
    register(database, 160, first=81)

    (new,) = run_json(run, "plan", "orders")["batches"]
    assert new["weight_bytes"] == 1_600
    (report,) = run_json(run, "status")["streams"]
    assert (report["batches"]["published"], report["batches"]["planned"]) == (1, 1)
    (item,) = run_json(run, "explain", "1")["items"]
    assert (item["generation"], item["batch_weight_bytes"]) == (1, 800)
    late = database.late_arrivals.audit("orders", database.meta_table("orders").reflected())
    assert late.late_batches
    configs = query(database, "SELECT config FROM batch_pipeline.batch ORDER BY id")
    assert [config["max_weight"] for (config,) in configs][:2] == ["800", "1600"]
