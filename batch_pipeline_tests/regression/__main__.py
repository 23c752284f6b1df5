"""`python -m batch_pipeline_tests.regression [--update]`: compare or rewrite the snapshots."""

import os
import sys

import pytest

from batch_pipeline_tests.regression.snapshots import DATA, UPDATE


def main() -> int:
    """Run the tests of this package; with `--update` they write the snapshots."""
    options = sys.argv[1:]
    if "--update" in options:
        options.remove("--update")
        os.environ[UPDATE] = "1"
    return pytest.main([str(DATA.parent), "-n0", *options])


if __name__ == "__main__":
    sys.exit(main())
