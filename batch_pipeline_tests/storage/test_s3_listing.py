"""Listing a prefix: every key once and in order, across pages."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from batch_pipeline.model.location import split_object
from batch_pipeline.storage.s3 import S3
from batch_pipeline_tests.object_store import ObjectStore
from batch_pipeline_tests.store_faults import Faults


def fill(bucket: str, keys: list[str]) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: S3.put(f"{bucket}/{key}", b"x"), keys))


def list_keys(prefix: str, **options: bool | str) -> list[str]:
    _, start = split_object(prefix)
    folder = start[: start.rfind("/") + 1]
    return [folder + one.name for one in S3.list(prefix, **options)]  # type: ignore[arg-type]


def test_list_returns_keys_unencoded(bucket: str) -> None:
    keys = ["in/a b", "in/a%20b", "in/a&b", "in/a+b", "in/a?b", "in/größe", "in/日本"]
    fill(bucket, keys)
    assert list_keys(f"{bucket}/in/") == keys


@pytest.mark.long
def test_list_and_delete_across_pages(bucket: str, faults: Faults) -> None:
    keys = [f"in/{number:05}" for number in range(1_234)]
    fill(bucket, keys)
    assert list_keys(f"{bucket}/in/") == keys
    assert faults.count("GET") == 2
    assert list_keys(f"{bucket}/in/", after="00999") == keys[1_000:]
    assert faults.count("GET") == 3
    assert next(S3.list(bucket)).name == "in/00000"
    assert faults.count("GET") <= 5  # one page is prefetched
    S3.delete(*(f"{bucket}/{key}" for key in keys))
    assert faults.count("POST") == 2
    assert list_keys(bucket) == []


def test_delete_of_many_keeps_others(bucket: str, object_store: ObjectStore) -> None:
    fill(bucket, ["a", "a&b<c>", "ä b", "b"])
    S3.delete(*(f"{bucket}/{key}" for key in ("a", "a&b<c>", "ä b")))
    assert list_keys(bucket) == ["b"]
