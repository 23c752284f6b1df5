"""Published batches that the tests of this folder share."""

from collections.abc import Iterator

import pytest

from batch_pipeline_tests.conformance.published_home import PublishedHome, published_home
from batch_pipeline_tests.inventory.logins import copied_database


@pytest.fixture(scope="session")
def home(
    server_url: str, template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PublishedHome]:
    """A home with published batches, which tests only read."""
    folder = tmp_path_factory.mktemp("home")
    with copied_database(server_url, template) as url, published_home(folder, url) as opened:
        yield opened
