"""What proofs share with the tests of the inventory: a database of a user, with a meta table."""

from batch_pipeline_tests.integration.conftest import (  # noqa: F401 - where pytest looks for them
    files,
    postgres,
    sqlite,
)
