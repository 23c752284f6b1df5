"""Fixtures of storage tests."""

import pytest

from batch_pipeline_tests.storage.bucket_landing import BucketLanding


@pytest.fixture
def s3_landing(bucket: str) -> BucketLanding:
    """A landing in a new, empty bucket."""
    return BucketLanding(bucket)
