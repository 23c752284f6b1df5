"""Columns that a catalog selects."""

from typing import Any

import pytest
from singer_sdk.singerlib.catalog import MetadataMapping

from batch_pipeline.model.errors import ConfigurationError
from batch_pipeline.singer.tap import selected_columns

NEWEST = ("id", "price", "note")


def selected_by(listed: str, **selected: bool) -> Any:
    """Return the columns selected by a catalog with these columns and selections."""
    metadata = MetadataMapping.from_iterable(
        [
            {"breadcrumb": [], "metadata": {"selected": True}},
            *(
                {
                    "breadcrumb": [
                        part for name in path.split("_") for part in ("properties", name)
                    ],
                    "metadata": {"selected": is_selected},
                }
                for path, is_selected in selected.items()
            ),
        ]
    )
    return selected_columns("orders", metadata, listed=listed.split(), newest=NEWEST)


@pytest.mark.parametrize(
    ("listed", "selected", "expected"),
    [
        ("id price note", {}, None),
        ("id price note", {"id": True, "price": True}, None),
        ("id price", {}, None),
        ("id price", {"price": True}, None),
        ("id price note", {"note": False}, {"id", "price"}),
        ("id price note", {"price": False, "note": True}, {"id", "note"}),
        ("id price", {"price": False}, {"id"}),
        ("id note", {}, {"id", "note"}),
        ("price note", {}, {"price", "note"}),
        ("id price note gone", {"gone": False}, {"id", "price", "note"}),
    ],
)
def test_selected_columns(
    listed: str, selected: dict[str, bool], expected: set[str] | None
) -> None:
    assert selected_by(listed, **selected) == expected


def test_deselected_property_of_a_column_is_rejected() -> None:
    """Only whole columns can be deselected."""
    with pytest.raises(ConfigurationError, match=r"price\.net of the stream orders is deselected"):
        selected_by("id price note", price_net=False)


def test_properties_of_deselected_column_are_ignored() -> None:
    columns = selected_by("id price note", price=False, price_net=False, note_text=True)
    assert columns == {"id", "note"}
