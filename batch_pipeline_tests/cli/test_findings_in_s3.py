"""Looks at buckets that streams read and write: can they be asked, and is their clock right?"""

from datetime import UTC, datetime, timedelta

from batch_pipeline.cli.findings import check_places
from batch_pipeline.model.checks import Finding
from batch_pipeline.model.stream import Source, Storage
from batch_pipeline_tests.factories import stream
from batch_pipeline_tests.pipeline.garbage_fixture import names_below


def found_of(root: str, *, ahead: timedelta = timedelta(0)) -> list[Finding]:
    """Look at a stream that lands and is stored in a bucket, with a clock that is so much ahead."""
    source = Source(uri=f"{root}/landing")
    one = stream(source=source, storage=Storage(root=f"{root}/batches"))
    return list(check_places(one, datetime.now(UTC) + ahead))


def test_bucket_in_order_is_no_finding(bucket: str) -> None:
    """Expect nothing to be said, and nothing to be written."""
    assert found_of(bucket) == []
    assert names_below(bucket) == []


def test_bucket_that_is_not_there_fails(bucket: str) -> None:
    """Expect the place, the key of the stream file and the reason."""
    storage, source = found_of(f"{bucket}-gone")
    assert (storage.level, source.level) == ("fail", "fail")
    assert storage.text.startswith(f"{bucket}-gone/batches cannot be listed (storage.root): ")
    assert "no such bucket" in storage.text


def test_clock_that_is_apart_from_the_store_is_told(bucket: str) -> None:
    """Expect a warning for each place, before the store refuses."""
    found = found_of(bucket, ahead=timedelta(minutes=10))
    assert [(one.level, one.subject) for one in found] == [("warn", "clock")] * 2
    assert f"seconds apart from the store of {bucket}/batches" in found[0].text
