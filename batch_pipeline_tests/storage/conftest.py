"""A landing in a bucket."""

import pytest

from batch_pipeline_tests.storage.bucket_landing import BucketLanding


@pytest.fixture
def place(bucket: str) -> BucketLanding:
    """A landing in a new bucket with nothing in it."""
    return BucketLanding(bucket)
