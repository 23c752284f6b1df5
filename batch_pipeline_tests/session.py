"""Pytest hooks of a test session: processes, temporary files, selection and exit status."""

import gc
import os
import shutil
import signal
import tempfile
from pathlib import Path

import psutil
import pytest
from hypothesis import settings

from batch_pipeline_tests.proofs import MARK

_MEMORY = Path("/dev/shm")  # noqa: S108 - all names created there are random
_REQUIRED_BYTES = 6 * 2**30
_S3, _STORE = "s3", "object_store"  # a marker, and the fixture whose tests get it
_LONG, _MARIADB = "long", "mariadb"
_MAX_PROCESSES = 4  # each has its own Spark and database server
_GC_THRESHOLD = 50_000  # as commands; imported modules and collected tests are never garbage
# Tests in these folders, and tests with these fixtures, load definitions.
_FOLDERS_OF_DAGSTER = {"acceptance", "defs", "regression"}
_FIXTURES_OF_DAGSTER = {"project", "defs_harness"}
# Dagster reads deprecated pydantic attributes of resources, and warns about features that we use.
_WARNINGS_OF_DAGSTER = ("pydantic.warnings.PydanticDeprecatedSince20", "dagster.BetaWarning")


def pytest_configure(config: pytest.Config) -> None:
    """Put temporary files in memory, if there is enough and TMPDIR is not set; allow Ctrl-C.

    Every test has its own databases. On a disk, creating them takes longer than all tests. A shell
    starts background processes with SIGINT ignored, and the processes of tests would inherit that.
    """
    gc.set_threshold(_GC_THRESHOLD)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", f"{_S3}: uses the S3 server of the tests")
    config.addinivalue_line("markers", f"{MARK}(number, …): proves a promise")
    config.addinivalue_line("markers", f"{_LONG}: runs with --long, or if its file is given")
    if config.getoption("--long", default=False) and not config.getoption("--hypothesis-profile"):
        settings.load_profile("long")  # before the import of test modules, whose settings extend it
    if "TMPDIR" not in os.environ and _is_roomy(_MEMORY):
        os.environ["TMPDIR"] = str(_MEMORY)  # also for the processes that tests start
        tempfile.tempdir = None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests that need an S3 or a MariaDB server; deselect long tests unless requested.

    Dagster's warnings are ignored in tests that load definitions.
    """
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        loads_definitions = not _FIXTURES_OF_DAGSTER.isdisjoint(fixtures)
        if loads_definitions or item.path.parent.name in _FOLDERS_OF_DAGSTER:
            for name in _WARNINGS_OF_DAGSTER:
                item.add_marker(pytest.mark.filterwarnings(f"ignore::{name}"), append=False)
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


def pytest_collection_finish() -> None:
    """Exempt everything that was imported and collected from garbage collection."""
    gc.freeze()


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return one process more than cores: tests wait often, so this saves a third of the time.

    If only modules are given, all tests run in this process.
    """
    if _names_files(config):
        return 0
    return min((os.cpu_count() or 1) + 1, _MAX_PROCESSES)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the session in CI if a test was skipped."""
    gc.unfreeze()  # libraries warn about objects that are not freed at exit
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter is not None else []
    if os.environ.get("CI") and skipped:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _names_files(config: pytest.Config) -> bool:
    return all(Path(argument.partition("::")[0]).is_file() for argument in config.args)


def _is_roomy(folder: Path) -> bool:
    """Return whether a folder in memory has room for all files, and allows executables."""
    if not folder.is_dir() or os.statvfs(folder).f_flag & os.ST_NOEXEC:
        return False
    free_bytes = min(shutil.disk_usage(folder).free, psutil.virtual_memory().available)
    return os.access(folder, os.W_OK) and free_bytes > _REQUIRED_BYTES
