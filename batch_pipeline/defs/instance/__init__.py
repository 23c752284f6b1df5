"""The Dagster instance of a home: its storage, its servers, the runs that a crash has left.

The modules of this package use parts of Dagster that are not public and may change with any minor
release; the others use public API only.
"""

from importlib.metadata import version

from batch_pipeline.model.errors import ConfigurationError

OLDEST, NEWEST = "1.13.7", "1.13.29"  # releases of Dagster that the tests passed with
SERIES = "1.13"


def check_dagster_version(installed: str) -> None:
    """Check that a release of Dagster is of the series whose private parts are known.

    Raises:
        ConfigurationError: it is not.
    """
    if installed.split(".")[:2] != SERIES.split("."):
        raise ConfigurationError(
            f"Dagster {installed} is installed; batch-pipeline uses parts of Dagster that are not "
            f"public, and is tested with {OLDEST} to {NEWEST}. Nothing was loaded. Install "
            f"another release of Dagster, for example with `uv add 'dagster~={SERIES}.0'`, or a "
            f"newer one of batch-pipeline."
        )


check_dagster_version(version("dagster"))  # `init` reads files of this package without Dagster
