"""What Dagster's tools know of the component without loading it: its schema, its name, its cost."""

import subprocess
import sys
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from batch_pipeline.config.stream_attributes import StreamAttributes
from batch_pipeline.defs.component import UncheckedAttributes


def _attributes(**more: Any) -> dict[str, Any]:
    return {"stream": "orders", "source": {"uri": "a"}} | more


TABLE = {
    "table": "ops.files",
    "roots": ["/data"],
    "where": [{"column": "kind", "operator": "=", "value": "a"}],
}


@pytest.mark.parametrize(
    "attributes",
    [
        _attributes(),
        _attributes(batch={"max_weight": "64MiB", "max_wait": 1.5, "min_weight": 10}),
        _attributes(on_bad_file="skip"),
        _attributes(on_bad_file={"missing": "skip"}),
        _attributes(lineage=True),
        _attributes(lineage=["_item_id"]),
        _attributes(schema={"mode": "infer", "evolution": "rescue"}),
        _attributes(encoding={"format": "parquet", "compression": None}),
        _attributes(stream_maps={"orders": {"id": "int(id)", "__else__": None}}),
        _attributes(dagster={"schedule": None, "owners": ["team:sales"], "tags": {"a": "b"}}),
        {"stream": "orders", "source": {"meta_table": TABLE}},
        *UncheckedAttributes.model_json_schema()["examples"],
    ],
    ids=str,
)
def test_schema_of_the_component_takes_what_streams_take(attributes: dict[str, Any]) -> None:
    """Expect `dg check yaml` and editors to accept what the reader accepts."""
    StreamAttributes.model_validate(attributes)
    schema = UncheckedAttributes.model_json_schema()
    assert [error.message for error in Draft202012Validator(schema).iter_errors(attributes)] == []


@pytest.mark.parametrize(
    "attributes",
    [{}, {"stream": "orders"}, _attributes(sorce={}), _attributes(batch={"max_count": "many"})],
    ids=str,
)
def test_schema_of_the_component_refuses_mistakes(attributes: dict[str, Any]) -> None:
    """Expect missing and unknown keys and wrong types to be seen without loading."""
    assert not Draft202012Validator(UncheckedAttributes.model_json_schema()).is_valid(attributes)


def test_package_names_the_component_and_loads_no_dagster() -> None:
    """Expect `dir` to have it for Dagster's search, and an import without Dagster's cost."""
    script = (
        "import sys, batch_pipeline as b;"
        "print('BatchStream' in dir(b), 'build_definitions' in dir(b),"
        "[m for m in ('dagster', 'pyspark', 'pyarrow', 'sqlalchemy') if m in sys.modules])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert ended.stdout == "True True []\n"
