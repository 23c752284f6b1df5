"""Why a schema changed: what is told of each version, and which declarations may change it."""

import pytest

from batch_pipeline.model.errors import ConfigurationError
from batch_pipeline.model.schema import Misfit, RecordSchema, changes_between, with_declared
from batch_pipeline_tests.encode.writers.part_factories import schema

PLACE = "file:///landing/a.csv"


def test_changes_between_versions_name_the_record_that_showed_them() -> None:
    after = schema(id="integer", price="number", discount="number", note="string")
    because = [
        Misfit(column=after.columns[1], item_id=7, location=PLACE, line=3),
        Misfit(column=after.columns[2], item_id=7, location=PLACE, line=None),
    ]

    changes = changes_between(schema(id="integer", price="integer"), after, because)

    assert [change.sentence for change in changes] == [
        f"`price` from integer to number, first in {PLACE}, line 3",
        f"added `discount` (number), first in {PLACE}",
        "added `note` (string)",
    ]
    assert changes[0].to_json() == {
        "column": "price",
        "before": "integer",
        "after": "number",
        "item_id": 7,
        "location": PLACE,
        "line": 3,
    }


@pytest.mark.parametrize(
    ("known", "earlier", "declared", "expected"),
    [
        ({}, None, {"a": "date"}, {"a": "date"}),
        ({"a": "integer"}, None, {"a": "number", "b": "date"}, {"a": "number", "b": "date"}),
        ({"a": "number"}, {"a": "integer"}, {"a": "integer"}, {"a": "number"}),
        ({"a": "integer", "b": "date"}, {"b": "date"}, {}, {"a": "integer", "b": "date"}),
        ({"a": "unknown"}, None, {"a": "timestamp"}, {"a": "timestamp"}),
        ({"a": "decimal(5,2)"}, None, {"a": "decimal(9,4)"}, {"a": "decimal(9,4)"}),
    ],
)
def test_with_declared_holds_the_known_and_the_declared(
    known: dict[str, str],
    earlier: dict[str, str] | None,
    declared: dict[str, str],
    expected: dict[str, str],
) -> None:
    before = None if earlier is None else schema(**earlier)
    found = with_declared("orders", schema(**known), before, schema(**declared))
    assert found == schema(**expected)


@pytest.mark.parametrize(
    ("known", "earlier", "declared", "message"),
    [
        ("number", "number", "integer", "declared integer, but was declared number before"),
        ("string", None, "integer", "declared integer, but is string in the published files"),
        ("date", None, "timestamp", "declared timestamp, but is date in the published files"),
    ],
)
def test_with_declared_that_narrows_or_contradicts_is_refused(
    known: str, earlier: str | None, declared: str, message: str
) -> None:
    before: RecordSchema | None = None if earlier is None else schema(a=earlier)
    with pytest.raises(ConfigurationError, match=message) as caught:
        with_declared("orders", schema(a=known), before, schema(a=declared))
    assert "Declare a type that holds both" in str(caught.value)
