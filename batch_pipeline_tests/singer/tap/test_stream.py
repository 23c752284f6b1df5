"""Which columns a catalog lets through."""

from typing import Any

import pytest
from singer_sdk.singerlib.catalog import MetadataMapping

from batch_pipeline.model.errors import ConfigurationError
from batch_pipeline.singer.tap.stream import selected_columns

NEWEST = ("id", "price", "note")


def chosen(listed: str, **selected: bool) -> Any:
    """Choose by a catalog that lists some of the columns and says of some whether they are."""
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
def test_chosen_columns_are_what_the_catalog_selects(
    listed: str, selected: dict[str, bool], expected: set[str] | None
) -> None:
    assert chosen(listed, **selected) == expected


def test_chosen_columns_without_a_part_of_one_are_refused() -> None:
    """Expect the column and its part to be named, since only whole columns can be left out."""
    with pytest.raises(ConfigurationError, match=r"price\.net of the stream orders is deselected"):
        chosen("id price note", price_net=False)


def test_chosen_columns_without_a_whole_column_need_nothing_of_its_parts() -> None:
    found = chosen("id price note", price=False, price_net=False, note_text=True)
    assert found == {"id", "note"}
