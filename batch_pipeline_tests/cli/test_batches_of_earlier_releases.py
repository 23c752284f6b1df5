"""Batches that an earlier release planned with limits it had learned."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from batch_pipeline.cli import cli
from batch_pipeline.inventory.database import Database
from batch_pipeline_tests.factories import limits
from batch_pipeline_tests.seeds import ORDER_ID, execute, plan, publish, query, register

LEARNED = {
    "max_weight": "800",
    "max_count": "10000",
    "min_weight": "0",
    "max_wait": "0:05:00",
    "target_seconds": "60.0",
    "most_weight": "1600",
    "weight_per_second": "13.5",
    "learned_from": "5",
}


@pytest.fixture
def environment(database_url: str, tmp_path: Path) -> dict[str, str]:
    attributes = {
        "stream": "orders",
        "source": {"uri": str(tmp_path / "landing"), "format": "csv"},
        "batch": {"max_weight": 1_600, "max_count": 10_000},
        "storage": {"root": str(tmp_path / "batches")},
    }
    path = tmp_path / "streams" / "orders" / "defs.yaml"
    path.parent.mkdir(parents=True)
    (tmp_path / "landing").mkdir()  # `plan` looks for new files
    path.write_text(
        yaml.safe_dump({"type": "batch_pipeline.BatchStream", "attributes": attributes})
    )
    return {
        "BATCH_PIPELINE_HOME": str(tmp_path / "home"),
        "BATCH_PIPELINE_STREAMS": str(path.parents[1]),
        "BATCH_PIPELINE_INVENTORY_CONN": database_url,
    }


@pytest.mark.parametrize("config", [LEARNED, LEARNED | {"weight_per_second": "nan"}])
def test_batches_with_learned_limits_are_read_and_continued_by_configured_ones(
    database: Database, environment: dict[str, str], config: dict[str, Any]
) -> None:
    register(database, 80)
    (old,) = plan(database, limits(max_weight=800, max_count=10_000))
    execute(database, "UPDATE batch_pipeline.batch SET config = :config", config=json.dumps(config))
    database.schemas.widen("orders", [ORDER_ID], text_source=True)
    publish(database, old)
    register(database, 160, first=81)

    def run(*words: str) -> Any:
        done = CliRunner().invoke(cli, [*words, "--json"], env=environment)
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    (new,) = run("plan", "orders")["batches"]
    assert new["weight_bytes"] == 1_600
    (report,) = run("status")["streams"]
    assert (report["batches"]["published"], report["batches"]["planned"]) == (1, 1)
    (story,) = run("explain", "1")["items"]
    assert (story["generation"], story["batch_weight_bytes"]) == (1, 800)
    late = database.late_arrivals.audit("orders", database.meta_table("orders").reflected())
    assert late.late_batches
    configs = query(database, "SELECT config FROM batch_pipeline.batch ORDER BY id")
    assert [one["max_weight"] for (one,) in configs][:2] == ["800", "1600"]
