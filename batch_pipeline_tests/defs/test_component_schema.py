"""Schema and name of the component, which Dagster's tools read without loading it."""

import sys
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from batch_pipeline.config.stream_attributes import StreamAttributes
from batch_pipeline.defs.component import UncheckedAttributes
from batch_pipeline_tests.acceptance.sandbox import program_output


def _attributes(**more: Any) -> dict[str, Any]:
    return {"stream": "orders", "source": {"uri": "a"}} | more


WHERE = {"column": "kind", "operator": "=", "value": "a"}


@pytest.mark.parametrize(
    "attributes",
    [
        _attributes(
            batch={"max_weight": "64MiB", "max_wait": 1.5, "min_weight": 10},
            on_bad_file="skip",
            lineage=True,
            schema={"mode": "infer", "evolution": "rescue"},
            encoding={"format": "parquet", "compression": None},
        ),
        _attributes(
            on_bad_file={"missing": "skip"},
            lineage=["_item_id"],
            stream_maps={"orders": {"id": "int(id)", "__else__": None}},
            dagster={"schedule": None, "owners": ["team:sales"], "tags": {"a": "b"}},
        ),
        _attributes(
            source={"meta_table": {"table": "ops.files", "roots": ["/data"], "where": [WHERE]}}
        ),
        *UncheckedAttributes.model_json_schema()["examples"],
    ],
)
def test_component_schema_accepts_valid_attributes(attributes: dict[str, Any]) -> None:
    """`dg check yaml` and editors use this schema."""
    StreamAttributes.model_validate(attributes)
    schema = UncheckedAttributes.model_json_schema()
    assert [error.message for error in Draft202012Validator(schema).iter_errors(attributes)] == []


@pytest.mark.parametrize(
    "attributes",
    [{}, {"stream": "orders"}, _attributes(sorce={}), _attributes(batch={"max_count": "many"})],
)
def test_component_schema_rejects_mistakes(attributes: dict[str, Any]) -> None:
    assert not Draft202012Validator(UncheckedAttributes.model_json_schema()).is_valid(attributes)


def test_package_lists_the_component_without_importing_dagster() -> None:
    script = (
        "import sys, batch_pipeline as b;"
        "print('BatchStream' in dir(b), 'build_definitions' in dir(b),"
        "[m for m in ('dagster', 'pyspark', 'pyarrow', 'sqlalchemy') if m in sys.modules])"
    )
    assert program_output(sys.executable, "-c", script) == "True True []\n"
