"""How a session of tests is run: in how many processes, where its files lie, when it has failed."""

import os
import shutil
import tempfile
from pathlib import Path

import psutil
import pytest
from hypothesis import settings

from batch_pipeline_tests.proofs import MARK

_MEMORY = Path("/dev/shm")  # noqa: S108 - every name made there is a random one
_ENOUGH_BYTES = 6 * 2**30
_S3, _STORE = "s3", "object_store"  # a marker, and the fixture whose tests have it
_LONG, _MARIADB = "long", "mariadb"
_MOST_PROCESSES = 4  # each has a Spark and a database server of its own


def pytest_configure(config: pytest.Config) -> None:
    """Keep temporary files in memory, where there is enough of it and nobody chose another place.

    Every test has databases of its own. On a disk, waiting for these takes longer than all tests.
    """
    config.addinivalue_line("markers", f"{_S3}: speaks to the S3 server of the tests")
    config.addinivalue_line("markers", f"{MARK}(number, …): proves a promise")
    config.addinivalue_line("markers", f"{_LONG}: run with --long, or if its file is named")
    if config.getoption("--long", default=False) and not config.getoption("--hypothesis-profile"):
        settings.load_profile("long")  # before test modules, whose settings build on it
    if "TMPDIR" not in os.environ and _is_roomy(_MEMORY):
        os.environ["TMPDIR"] = str(_MEMORY)  # also for the processes that tests start
        tempfile.tempdir = None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests that need an S3 or a MariaDB server; deselect long tests unless requested."""
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if _STORE in fixtures:
            item.add_marker(_S3)
        if any(_MARIADB in name for name in (*fixtures, item.name)):
            item.add_marker(_LONG)
    if config.getoption("--long", default=False) or _names_files(config):
        return
    long = [item for item in items if item.get_closest_marker(_LONG) is not None]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item.get_closest_marker(_LONG) is None]


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Give a process to each core and one more, for tests wait: a third of the time is won.

    A single module gets only one, this very one.
    """
    if _names_files(config):
        return 0
    return min((os.cpu_count() or 1) + 1, _MOST_PROCESSES)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Let a skipped test fail the session in CI."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter is not None else []
    if os.environ.get("CI") and skipped:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _names_files(config: pytest.Config) -> bool:
    return all(Path(argument.partition("::")[0]).is_file() for argument in config.args)


def _is_roomy(folder: Path) -> bool:
    """Tell whether a folder in memory takes all that the tests write, programs among it."""
    if not folder.is_dir() or os.statvfs(folder).f_flag & os.ST_NOEXEC:
        return False
    room = min(shutil.disk_usage(folder).free, psutil.virtual_memory().available)
    return os.access(folder, os.W_OK) and room > _ENOUGH_BYTES
