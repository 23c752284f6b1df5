"""Rules of records: how many bad ones a batch may have."""

import pytest

from batch_pipeline.model.record_rules import BadRecordRules


@pytest.mark.parametrize(
    ("rules", "most"),
    [
        (BadRecordRules(), 0),
        (BadRecordRules(max_bad_records=2), 2),
        (BadRecordRules(max_bad_ratio=0.25), 5),
        (BadRecordRules(max_bad_records=7, max_bad_ratio=0.25), 5),
    ],
)
def test_as_many_bad_records_of_twenty_as_the_limit_are_allowed(
    rules: BadRecordRules, most: int
) -> None:
    assert rules.allow(bad=most, read=20)
    assert not rules.allow(bad=most + 1, read=20)
