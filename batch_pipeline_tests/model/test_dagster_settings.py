"""Labels of a stream's assets: what Dagster would refuse is refused first, with its name."""

from typing import Any

import dagster as dg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_pipeline.model.errors import InvalidValueError
from batch_pipeline.model.stream import DagsterRules


@pytest.mark.parametrize(
    ("rules", "named"),
    [
        ({"tags": {"a b": "c"}}, "dagster.tags is 'a b: c'"),
        ({"tags": {"tier": "gold plated"}}, "dagster.tags is 'tier: gold plated'"),
        ({"tags": {"tier": "x" * 64}}, "dagster.tags is 'tier: xxx"),
        ({"tags": {"a/b/c": ""}}, "dagster.tags is 'a/b/c: '"),
        ({"owners": ("o'neil@example.org",)}, "dagster.owners is"),
        ({"owners": ("me@example.c",)}, "dagster.owners is 'me@example.c'"),
        ({"group": "my sales"}, "dagster.group is 'my sales'"),
        ({"pool": "night shift"}, "dagster.pool is 'night shift'"),
    ],
)
def test_label_that_dagster_refuses_is_refused_first(rules: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        DagsterRules(**rules)
    assert str(caught.value).startswith(named)


@given(
    owner=st.one_of(
        st.emails(),
        st.text(st.sampled_from("abZ09._%+-@ "), max_size=12),
        st.text(st.sampled_from("ab.-_ :"), max_size=6).map(lambda name: f"team:{name}"),
    ),
    tag=st.text(st.sampled_from("ab9_.-/ ") | st.characters(), max_size=66),
    value=st.text(st.sampled_from("ab9_.- ") | st.characters(), max_size=66),
)
def test_label_that_passes_loads(owner: str, tag: str, value: str) -> None:
    """Expect Dagster to take whatever the rules take."""
    for rules in ({"owners": (owner,)}, {"tags": {tag: value}}):
        try:
            accepted = DagsterRules(**rules)
        except InvalidValueError:
            continue
        tags = dict(accepted.tags)
        dg.AssetSpec("a", owners=[*accepted.owners], tags=tags)
