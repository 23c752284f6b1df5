"""The `dagster` section of a stream file: labels and schedules."""

import warnings
from typing import Any

import dagster as dg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_pipeline.model.errors import InvalidValueError
from batch_pipeline.model.stream import DagsterRules, check_cron


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"tags": {"a b": "c"}}, "dagster.tags is 'a b: c'"),
        ({"tags": {"tier": "x" * 64}}, "dagster.tags is 'tier: xxx"),
        ({"tags": {"a/b/c": ""}}, "dagster.tags is 'a/b/c: '"),
        ({"owners": ("o'neil@example.org",)}, "dagster.owners is"),
        ({"owners": ("me@example.c",)}, "dagster.owners is 'me@example.c'"),
        ({"group": "my sales"}, "dagster.group is 'my sales'"),
        ({"pool": "night shift"}, "dagster.pool is 'night shift'"),
    ],
)
def test_label_that_dagster_rejects_is_rejected(rules: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        DagsterRules(**rules)
    assert str(caught.value).startswith(message)


@given(
    owner=st.one_of(
        st.emails(),
        st.text(st.sampled_from("abZ09._%+-@ "), max_size=12),
        st.text(st.sampled_from("ab.-_ :"), max_size=6).map(lambda name: f"team:{name}"),
    ),
    tag=st.text(st.sampled_from("ab9_.-/ ") | st.characters(), max_size=66),
    value=st.text(st.sampled_from("ab9_.- ") | st.characters(), max_size=66),
)
def test_accepted_label_is_accepted_by_dagster(owner: str, tag: str, value: str) -> None:
    for rules in ({"owners": (owner,)}, {"tags": {tag: value}}):
        try:
            accepted = DagsterRules(**rules)
        except InvalidValueError:
            continue
        tags = dict(accepted.tags)
        dg.AssetSpec("a", owners=[*accepted.owners], tags=tags)


@pytest.mark.parametrize(
    "line",
    [
        *("*/15 * * * *", "0,30 8-18/2 * * mon-fri", " 0  6 1-7 * 6 ", "5 4 31 jan,MAR *"),
        "0 0 29 2 *",
    ],
)
def test_cron_line_is_accepted(line: str) -> None:
    check_cron(line, name="schedule")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("daily", "five fields"),
        ("60 6 * * *", "minute, '60', is within 0 to 59"),
        ("0 24 * * *", "hour, '24'"),
        ("0 0 0 * *", "day of the month, '0'"),
        ("0 0 * * 7", "day of the week, '7'"),
        ("9-3 * * * *", "minute, '9-3'"),
        ("*/90 * * * *", "minute, '*/90'"),
        ("1-5/9 * * * *", "minute, '1-5/9'"),
        ("*/0 * * * *", "minute, '*/0'"),
        ("5/10 * * * *", "minute, '5/10'"),
        ("1, * * * *", "minute, '1,'"),
        ("0 0 L * *", "day of the month, 'l'"),
        ("0 0 31 2,4 *", "a day that its months have"),
        ("0 0 31 2 sun", "a day that its months have"),  # Dagster refuses it as well
    ],
)
def test_invalid_cron_line_is_rejected(line: str, words: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        check_cron(line, name="schedule")
    assert repr(line) in str(caught.value)
    assert words in str(caught.value)


def _field(lowest: int, highest: int) -> st.SearchStrategy[str]:
    number = st.integers(lowest, highest)
    ends = st.tuples(number, number).map(sorted).filter(lambda both: both[1] > 0)
    step = st.integers(1, highest - lowest)
    part = st.one_of(
        st.just("*"),
        number.map(str),
        step.map(lambda by: f"*/{by}"),
        ends.map(lambda both: f"{both[0]}-{both[1]}"),
        st.builds(lambda both, by: f"{both[0]}-{both[1]}/{min(by, both[1])}", ends, step),
    )
    return st.lists(part, min_size=1, max_size=3).map(",".join)


@given(st.tuples(_field(0, 59), _field(0, 23), _field(1, 31), _field(1, 12), _field(0, 6)))
def test_accepted_cron_line_is_accepted_by_dagster(fields: tuple[str, ...]) -> None:
    line = " ".join(fields)
    try:
        check_cron(line, name="schedule")
    except InvalidValueError:
        assert fields[2] != "*"  # only days that no month has are rejected
        return
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        schedule = dg.ScheduleDefinition(name="one", cron_schedule=line, job_name="any")
    assert schedule.cron_schedule == line
