"""Reports of tasks: how the parts of an item are merged."""

from dataclasses import replace

from batch_pipeline.encode.task import merge_item_reports
from batch_pipeline.model.manifest import ItemReport
from batch_pipeline.model.record_rules import BadFileKind

FIRST = ItemReport(
    item_id=1,
    location="file:///a.csv",
    read=16,
    written=9,
    quarantined=4,
    filtered=3,
    rescued=2,
)
SECOND = replace(FIRST, read=160, written=90, quarantined=40, filtered=30, rescued=20)
OTHER = replace(FIRST, item_id=2, location="file:///b.csv")


def test_merge_item_reports_adds_every_count_of_the_parts_of_an_item() -> None:
    merged = replace(FIRST, read=176, written=99, quarantined=44, filtered=33, rescued=22)
    assert merge_item_reports([FIRST, OTHER, SECOND]) == (merged, OTHER)


def test_merge_item_reports_keeps_why_the_file_of_any_part_is_bad() -> None:
    bad = replace(SECOND, bad_file="is not UTF-8", bad_kind=BadFileKind.CORRUPT)
    for parts in ([FIRST, bad], [bad, FIRST]):
        [merged] = merge_item_reports(parts)
        assert (merged.bad_file, merged.bad_kind) == ("is not UTF-8", BadFileKind.CORRUPT)
