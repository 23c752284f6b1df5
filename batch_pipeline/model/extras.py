"""Packages of the extras `embedded`, `singer` and `metrics`, which may be missing."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from batch_pipeline.model.errors import ConfigurationError


@contextmanager
def requires_extra(extra: str, feature: str) -> Iterator[None]:
    """Convert a failed import within the block.

    Raises:
        ConfigurationError: a package of the extra is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise _missing(extra, feature, str(error.name)) from error


def check_extra(extra: str, feature: str, package: str) -> None:
    """Check that a package of an extra is installed, without importing it.

    Raises:
        ConfigurationError: it is not installed.
    """
    if find_spec(package) is None:
        raise _missing(extra, feature, package)


def _missing(extra: str, feature: str, package: str) -> ConfigurationError:
    distribution = f"batch-pipeline[{extra}]"
    return ConfigurationError(
        f"{feature} needs the package {package}, which is not installed. Install it with "
        f"`uv add '{distribution}'` or `pip install '{distribution}'`."
    )
