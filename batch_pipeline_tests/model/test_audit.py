"""Comparison of the items of published batches with the meta table, and audit reports."""

from hypothesis import given
from hypothesis import strategies as st

from batch_pipeline.model.audit import Audit, Comparison, CountedNames

IDS = st.sets(st.integers(-30, 30))


@given(seen=IDS, present=IDS)
def test_comparison_finds_differences_in_both_directions(seen: set[int], present: set[int]) -> None:
    comparison = Comparison(seen=sorted(seen), rows=[(uid, 100 + uid) for uid in sorted(present)])
    assert list(comparison.surplus()) == [(uid, 100 + uid) for uid in sorted(present - seen)]
    missing = sorted(seen - present)
    assert comparison.missing == CountedNames(count=len(missing), first=tuple(missing[:20]))
    assert comparison.weight == sum(100 + uid for uid in seen & present)


def test_comparison_counts_duplicate_rows_once() -> None:
    comparison = Comparison(seen=[1], rows=[(1, 5), (1, 5), (2, 7), (2, 7)])
    assert list(comparison.surplus()) == [(2, 7)]
    assert (comparison.weight, comparison.missing.count) == (5, 0)


def test_counted_names_keep_the_first_twenty() -> None:
    counted = CountedNames().extended(range(15)).plus(CountedNames().extended(range(15, 30)))
    assert (counted.count, counted.first) == (30, tuple(range(20)))
    assert str(counted).endswith("18, 19, …")
    assert str(CountedNames().extended([3, 4])) == "3, 4"


def test_sentence_of_audit_names_all_findings() -> None:
    clean = Audit(job="orders", late_job="orders.late", batches=12)
    assert clean.is_clean
    assert clean.sentence() == (
        "orders: Published batches compared with the meta table: 12. No late, deleted or "
        "changed items."
    )
    audit = Audit(
        job="orders",
        late_job="orders.late",
        batches=3,
        left_out=1,
        refused=CountedNames(count=1, first=(9,)),
        missing=CountedNames(count=2, first=(4, 5)),
        changed=CountedNames(count=1, first=("00000007-00000009",)),
    ).with_late([17, 18], batches=1, known=5)
    assert not audit.is_clean
    assert audit.sentence() == (
        "orders: Published batches compared with the meta table: 3. "
        "Items that arrived late: 2 (ids: 17, 18). "
        "Batches of job 'orders.late' planned for them: 1. "
        "Late items planned by earlier audits: 5. "
        "Late items with a negative id, or a weight that cannot be counted: 1 (ids: 9). "
        "Correct it, and the next audit plans them. "
        "Items deleted since they were published: 2 (ids: 4, 5). Their published records stay. "
        "Batches whose weight has changed since they were published: 1 "
        "(00000007-00000009). Their published records stay. "
        "Published batches not compared: 1. Their items were not recorded, or they are running "
        "again."
    )
