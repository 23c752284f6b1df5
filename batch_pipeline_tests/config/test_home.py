"""The home folder and its lock."""

import json
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from batch_pipeline.config.home import Home
from batch_pipeline.model.errors import ConfigurationError, RetryableError

HOLD_THE_LOCK = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from batch_pipeline.config.home import Home

since = datetime(2026, 11, 20, 18, 2, tzinfo=UTC)
with Home(path=Path(sys.argv[1])).lock("batch-pipeline dev", since=since):
    print("locked", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A home folder that does not exist yet."""
    return Home(path=tmp_path / "some" / "home")


def start_holder(home: Home, program: str = HOLD_THE_LOCK) -> subprocess.Popen[str]:
    """Start a second process and wait until it holds the lock."""
    holder = subprocess.Popen(
        [sys.executable, "-c", program, str(home.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "locked\n"
    return holder


def stop_process(holder: subprocess.Popen[str]) -> None:
    """Let a process end and close its pipes."""
    holder.communicate(timeout=300)


def is_free(home: Home) -> bool:
    """Return whether another process could acquire the lock now."""
    program = HOLD_THE_LOCK.replace("sys.stdin.readline()", "pass")
    command = [sys.executable, "-c", program, str(home.path)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_ensure_creates_a_private_folder_that_git_ignores_and_then_keeps_it(home: Home) -> None:
    home.ensure()
    assert stat.S_IMODE(home.path.stat().st_mode) == 0o700
    assert (home.path / ".gitignore").read_text() == "*\n"
    home.path.chmod(0o750)
    (home.path / ".gitignore").write_text("*\n!kept\n")
    home.ensure()
    assert stat.S_IMODE(home.path.stat().st_mode) == 0o750
    assert (home.path / ".gitignore").read_text() == "*\n!kept\n"


def test_ensure_below_a_file_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"The home folder .* cannot be used") as caught:
        Home(path=tmp_path / "file" / "home").ensure()
    assert str(tmp_path / "file" / "home") in str(caught.value)
    assert "(not a directory)" in str(caught.value)
    assert "BATCH_PIPELINE_HOME" in str(caught.value)


def test_ensure_on_read_only_folder_is_rejected() -> None:
    folder = Path(tempfile.mkdtemp())
    home = Home(path=folder / "home")
    home.ensure()
    home.path.chmod(0o500)
    folder.chmod(0o755)
    try:
        with unprivileged(), pytest.raises(ConfigurationError, match="permission denied"):
            home.ensure()
    finally:
        home.path.chmod(0o700)
        shutil.rmtree(folder)


@contextmanager
def unprivileged() -> Iterator[None]:
    """Drop root privileges temporarily, because root may write everywhere."""
    if os.geteuid() != 0:
        yield
        return
    os.setresuid(65534, 65534, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


def test_lock_held_by_second_process_names_its_holder(home: Home) -> None:
    holder = start_holder(home)
    with (
        pytest.raises(RetryableError, match="is in use by") as caught,
        home.lock("batch-pipeline run"),
    ):
        pass
    stop_process(holder)
    expected = f"`batch-pipeline dev` (process {holder.pid}, since 2026-11-20 18:02 UTC)"
    assert expected in str(caught.value)


def test_lock_is_free_after_its_holder_was_killed(home: Home) -> None:
    holder = start_holder(home)
    holder.send_signal(signal.SIGKILL)
    stop_process(holder)
    with home.lock("batch-pipeline run"):
        assert not is_free(home)
    assert is_free(home)


@pytest.mark.parametrize("pid", [4194305, "none"])
def test_ended_or_invalid_holder_is_none(home: Home, pid: object) -> None:
    home.ensure()
    holder = {"pid": pid, "purpose": "batch-pipeline dev", "since": "2026-01-01T00:00:00+00:00"}
    home.lock_file.write_text(json.dumps(holder))
    assert home.holder() is None


def test_lock_with_unreadable_holder_names_another_process(home: Home) -> None:
    with home.lock("batch-pipeline run"):
        home.lock_file.write_text("")
        with pytest.raises(RetryableError, match="in use by another process"), home.lock("x"):
            pass


@pytest.mark.parametrize(
    "start_child",
    [
        "child = os.fork()\n    if child == 0:\n        exec(CHILD)\n        os._exit(0)",
        "subprocess.Popen([sys.executable, '-c', CHILD], close_fds=False)",
    ],
    ids=["fork", "subprocess"],
)
def test_child_of_killed_process_does_not_hold_the_lock(home: Home, start_child: str) -> None:
    program = f"""
import os, signal, subprocess, sys
from pathlib import Path
from batch_pipeline.config.home import Home

CHILD = "import sys; print('locked', flush=True); sys.stdin.readline()"
with Home(path=Path(sys.argv[1])).lock("batch-pipeline dev"):
    {start_child}
    signal.pause()
"""
    parent = start_holder(home, program)
    parent.kill()
    assert parent.wait(timeout=300) == -signal.SIGKILL
    with home.lock("batch-pipeline run"):
        stop_process(parent)


def test_forked_child_does_not_release_the_parents_lock(home: Home) -> None:
    program = """
import os, sys
from pathlib import Path
from batch_pipeline.model.errors import RetryableError
from batch_pipeline.config.home import Home

home = Home(path=Path(sys.argv[1]))
with home.lock("batch-pipeline dev"):
    child = os.fork()
    if child != 0:
        assert os.waitpid(child, 0)[1] == 0
        try:
            with home.lock("batch-pipeline run"):
                print("acquired", flush=True)
        except RetryableError as error:
            print(str(error).partition(" is in use by ")[2].partition(" (")[0], flush=True)
if child == 0:
    os._exit(0)
"""
    command = [sys.executable, "-c", program, str(home.path)]
    run = subprocess.run(command, capture_output=True, check=False, text=True, timeout=300)
    assert (run.stdout, run.stderr) == ("`batch-pipeline dev`\n", "")


def test_full_disk_is_a_configuration_error_and_leaves_the_counts_as_they_are(home: Home) -> None:
    """The size limit of the process is like a full disk."""
    home.ensure()
    home.set_reported("orders", {1: 2})
    with no_space():
        home.set_reported("orders", {1: 3})
        with pytest.raises(ConfigurationError, match="file too large"), home.lock("x"):
            pass
    ignore = home.path / ".gitignore"
    ignore.write_text("")  # as a full disk leaves it
    with no_space(), pytest.raises(ConfigurationError, match="file too large"):
        home.ensure()
    with home.lock("x"):
        assert home.reported("orders") == {1: 2}
    assert ignore.read_text() == "*\n"


@contextmanager
def no_space() -> Iterator[None]:
    """Let no file grow."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, previous)


def test_fork_after_release_closes_no_file(home: Home) -> None:
    """The lock's file descriptor may have been reused by then."""
    with home.lock("batch-pipeline run"):
        pass
    with home.lock_file.open() as file:
        child = os.fork()
        if child == 0:
            try:
                os.fstat(file.fileno())
                os._exit(0)
            except OSError:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
