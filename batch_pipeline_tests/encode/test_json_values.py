"""Values as JSON text."""

import math
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from batch_pipeline.encode.json_values import NonfiniteError, json_text
from batch_pipeline.model.record_rules import OnNonfinite

QUARANTINE = OnNonfinite.QUARANTINE


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Decimal("1.10"), "1.10"),
        (date(2026, 1, 31), '"2026-01-31"'),
        (time(12, 30, 0, 1), '"12:30:00.000001"'),
        (datetime(2026, 1, 31, 12, tzinfo=UTC), '"2026-01-31T12:00:00Z"'),
        (datetime(2026, 1, 31, 12), '"2026-01-31T12:00:00"'),  # noqa: DTZ001 - it has no zone
        (
            datetime(2026, 1, 31, 12, tzinfo=timezone(timedelta(hours=1))),
            '"2026-01-31T12:00:00+01:00"',
        ),
        (b"ab", '"YWI="'),
        (UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        ({"b": [1, None], "a": {}}, '{"b":[1,null],"a":{}}'),
        ("é\u2028", '"é\u2028"'),
    ],
)
def test_json_text_of_typed_values_is_compact(value: Any, text: str) -> None:
    assert json_text(value, QUARANTINE) == text.encode()


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (math.nan, "NaN"),
        (math.inf, "Infinity"),
        (-math.inf, "-Infinity"),
        (Decimal("NaN"), "NaN"),
        (Decimal("-Infinity"), "-Infinity"),
    ],
)
def test_json_text_of_nonfinite_number_follows_rule(number: float, name: str) -> None:
    value = {"a": [1.5, {"b": number}], "NaN": "null"}

    with pytest.raises(NonfiniteError) as raised:
        json_text(value, QUARANTINE)

    assert str(raised.value) == f"holds {name}, which JSON cannot represent"
    assert json_text(value, OnNonfinite.NULL) == b'{"a":[1.5,{"b":null}],"NaN":"null"}'
    assert json_text(value, OnNonfinite.STRING) == (
        b'{"a":[1.5,{"b":"%b"}],"NaN":"null"}' % name.encode()
    )


def test_json_text_of_exception_raises_it() -> None:
    with pytest.raises(KeyError):
        json_text({"a": KeyError("x")}, QUARANTINE)
