"""Golden files encoded on Spark by the real command, and complete manifests."""

import json
from pathlib import Path
from typing import Any

import pytest

from batch_pipeline_tests.cli.commands import invoke
from batch_pipeline_tests.factories import environment_of
from batch_pipeline_tests.regression.golden import (
    entry_of,
    inputs,
    normalized,
    write_stream,
)
from batch_pipeline_tests.regression.inputs import Input
from batch_pipeline_tests.regression.snapshots import committed, compare

ON_SPARK = {  # inputs with their encodings
    "csv.ragged": "jsonl-none",
    "jsonl.malformed": "arrow-none",
    "limits.part_records": "parquet-snappy",
    "schema.inferred_add": "jsonl-none",
}
TRANSFORM = "batch_pipeline_tests.regression.test_published_manifests:doubled"


def doubled(frame: Any) -> Any:
    """Return each record with an additional column."""
    return frame.selectExpr("*", "a * 2 AS doubled")


def test_run_on_spark_publishes_the_golden_files(
    tmp_path: Path, database_url: str, warm_spark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for input_ in inputs():
        if encoding := ON_SPARK.get(input_.name):
            write_stream(tmp_path, f"{input_.name}-{encoding}", input_, encoding)
    files = {"1.jsonl": b'{"a":1}\n{"a":2}\n{"a":null}\n'}
    transformed = Input(name="", files=files, attributes={"transform": TRANSFORM})
    write_stream(tmp_path, "transformed", transformed, "parquet-zstd")
    for variable, text in environment_of(tmp_path, database_url).items():
        monkeypatch.setenv(variable, text)
    monkeypatch.setenv("BATCH_PIPELINE_SPARK_REMOTE", warm_spark)

    result = invoke("run", "--json")

    assert result.exit_code == 0, result.output
    published = {
        f"{folder.name} batch {number}": path
        for folder in sorted((tmp_path / "batches").iterdir())
        for number, path in enumerate(sorted((folder / "manifests").iterdir()), 1)
    }
    entries = {name: entry_of(path, tmp_path) for name, path in published.items()}
    transformed_entry = entries.pop("transformed batch 1")
    golden = committed("golden_files.json")
    assert entries == {name: golden[name] for name in entries}
    assert len(entries) == len(ON_SPARK) + 3
    manifests = {
        name: normalized(json.loads(path.read_text("utf-8")), tmp_path)
        for name, path in published.items()
    }
    compare("published_manifests.json", {**manifests, "transformed entry": transformed_entry})
