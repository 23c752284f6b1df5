"""What lies below a prefix: every key once and in order, by pages, and what was never finished."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from batch_pipeline.model.location import split_object
from batch_pipeline.storage.s3 import S3
from batch_pipeline_tests.object_store import ObjectStore
from batch_pipeline_tests.store_faults import Faults


def fill(bucket: str, keys: list[str]) -> None:
    """Put objects of one byte."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: S3.put(f"{bucket}/{key}", b"x"), keys))


def listed(prefix: str, **how: bool | str) -> list[str]:
    """List keys."""
    _, start = split_object(prefix)
    folder = start[: start.rfind("/") + 1]
    return [folder + one.name for one in S3.list(prefix, **how)]  # type: ignore[arg-type]


def test_listing_begins_at_the_prefix(bucket: str) -> None:
    fill(bucket, ["in/a", "in/b/c", "in2/a", "inner", "out/a"])
    assert listed(f"{bucket}/in/") == ["in/a", "in/b/c"]
    assert listed(f"{bucket}/in") == ["in/a", "in/b/c", "in2/a", "inner"]
    assert listed(bucket) == ["in/a", "in/b/c", "in2/a", "inner", "out/a"]


def test_keys_stand_in_a_listing_as_they_are(bucket: str) -> None:
    keys = ["in/a b", "in/a%20b", "in/a&b", "in/a+b", "in/a?b", "in/größe", "in/日本"]
    fill(bucket, keys)
    assert listed(f"{bucket}/in/") == keys


@pytest.mark.long
def test_listing_of_pages_is_whole(bucket: str, faults: Faults) -> None:
    keys = [f"in/{number:05}" for number in range(1_234)]
    fill(bucket, keys)
    assert listed(f"{bucket}/in/") == keys
    assert faults.count("GET") == 2
    assert listed(f"{bucket}/in/", after="00999") == keys[1_000:]
    assert faults.count("GET") == 3
    assert next(S3.list(bucket)).name == "in/00000"
    assert faults.count("GET") <= 5  # one page is asked for ahead
    S3.delete(*(f"{bucket}/{key}" for key in keys))
    assert faults.count("POST") == 2
    assert listed(bucket) == []


def test_remove_all_leaves_the_others(bucket: str, object_store: ObjectStore) -> None:
    fill(bucket, ["a", "a&b<c>", "ä b", "b"])
    S3.delete(*(f"{bucket}/{key}" for key in ("a", "a&b<c>", "ä b")))
    assert listed(bucket) == ["b"]
