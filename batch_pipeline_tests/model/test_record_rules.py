"""Limits of bad records per batch."""

import pytest

from batch_pipeline.model.record_rules import BadRecordRules


@pytest.mark.parametrize(
    ("rules", "limit"),
    [
        (BadRecordRules(), 0),
        (BadRecordRules(max_bad_records=2), 2),
        (BadRecordRules(max_bad_ratio=0.25), 5),
        (BadRecordRules(max_bad_records=7, max_bad_ratio=0.25), 5),
    ],
)
def test_bad_records_are_allowed_up_to_the_limit(rules: BadRecordRules, limit: int) -> None:
    assert rules.allow(bad=limit, read=20)
    assert not rules.allow(bad=limit + 1, read=20)


def test_bad_records_at_the_ratio_are_allowed() -> None:
    """Although 0.29 * 100 is less than 29."""
    for percent in range(1, 100):
        rules = BadRecordRules(max_bad_ratio=percent / 100)
        assert rules.allow(bad=percent, read=100)
        assert not rules.allow(bad=percent + 1, read=100)
