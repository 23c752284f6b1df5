"""Real sessions, local and of a Connect client, with the bundled Java and the system's.

Each session has its own process, as classic and Connect sessions cannot share one.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from batch_pipeline.model.errors import InvalidValueError, SparkUnavailableError
from batch_pipeline.spark import run_while_parent_lives
from batch_pipeline.spark.driver import DAEMON_MODULE
from batch_pipeline.spark.java import archive_path, find_java_home
from batch_pipeline.spark.session import LocalSession, SparkSettings, open_session
from batch_pipeline.spark.spark_connect import SparkConnectServer, without_session_id
from batch_pipeline_tests.concurrency import eventually, is_running

# Not a skip mark, because without a system Java there is nothing to test.
both_javas = pytest.mark.parametrize(
    "java", ["bundled", "system"] if shutil.which("java") else ["bundled"]
)

COMMON = """
import json, os, sys, tempfile
from pathlib import Path
import psutil
from batch_pipeline.model.errors import PipelineError
from batch_pipeline.spark.session import (
    SparkSettings,
    close_session,
    open_engine,
    open_session,
)

def doubled(batches):
    import sys
    import pyarrow as pa
    import batch_pipeline
    for batch in batches:
        values = [2 * value for value in batch.column(0).to_pylist()]
        python = [sys.executable] * len(values)
        yield pa.RecordBatch.from_pydict({"id": values, "python": python})

def small_job(session):
    frame = session.range(3).mapInArrow(doubled, "id long, python string")
    return sorted([row.id, row.python] for row in frame.collect())

def python_of_tasks(batches):
    import sys
    import pyarrow as pa
    for batch in batches:
        for number, spec in zip(*batch.to_pydict().values()):
            yield pa.RecordBatch.from_pydict({"report": [f"{number} {spec} {sys.executable}"]})

def small_tasks(engine):
    from batch_pipeline.spark.spark_job import run_function
    return sorted(run_function(engine, [b"a", b"b"], python_of_tasks))

def family():
    return psutil.Process().children(recursive=True)

def is_running(process):  # False for zombies, which init may reap late
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False

def kill_jvm():
    jvm = next(process for process in family() if process.name() == "java")
    jvm.kill()
    jvm.wait()

settings = SparkSettings(home=Path(sys.argv[1]), remote=os.environ.get("REMOTE"))
"""

SMALL_JOB = """
print(json.dumps(small_job(open_session(settings))))
"""

LIFECYCLE = """
import numpy
from batch_pipeline.spark.spark_job import warm_up
report = {}
before = dict(os.environ)
engine = open_engine(settings)
warm_up(engine)
report["reports"] = small_tasks(engine)
session = open_session(settings)
report["engine"] = open_engine(settings) is session.sparkContext is engine
report["rows"] = small_job(session)
report["changed_variables"] = sorted(n for n in os.environ if os.environ[n] != before.get(n))
report["same"] = open_session(SparkSettings(home=settings.home)) is session
report["time_zone"] = session.conf.get("spark.sql.session.timeZone")
report["of_numpy"] = engine._jvm.java.lang.String.valueOf(numpy.int64(7))
other = SparkSettings(home=settings.home, conf={"spark.sql.shuffle.partitions": "7"})
try:
    open_session(other)
except PipelineError as error:
    report["error"] = type(error).__name__
processes = family()
close_session()
report["alive_after_close"] = [process.pid for process in processes if is_running(process)]
replacement = open_session(other)
report["replacement"] = replacement.conf.get("spark.sql.shuffle.partitions")
kill_jvm()
report["reports_after_crash"] = small_tasks(open_engine(other))
kill_jvm()  # of a context without a session
report["reports_after_crash_of_context"] = small_tasks(open_engine(other))
report["rows_after_crash"] = small_job(open_session(other))
report["left_open"] = [process.pid for process in family()]
print(json.dumps(report))
"""

ENCRYPTED = """
import warnings
warnings.simplefilter("ignore", ResourceWarning)  # pyspark leaves a socket open
encrypted = SparkSettings(home=settings.home, conf={"spark.io.encryption.enabled": "true"})
print(json.dumps(small_tasks(open_engine(encrypted))))
"""

STARTED_IN_ADVANCE = """
from batch_pipeline.spark.session import end_session, open_in_background, start_session
tempfile.tempdir = tempfile.mkdtemp(prefix="bp-")  # used only by this test
report = {}
start_session(settings)
open_in_background()
modules = set(sys.modules)
engine = open_engine(settings)
report["imported"] = sorted(set(sys.modules) - modules)
report["reports"] = small_tasks(engine)
report["rows"] = small_job(open_session(settings))
processes = family()
report["ended"] = end_session()
report["left"] = [process.pid for process in processes if is_running(process)]
report["temporary"] = os.listdir(tempfile.tempdir)
report["reports_after_end"] = small_tasks(open_engine(settings))
end_session()  # of a context without a session
report["rows_after_end"] = small_job(open_session(settings))
close_session()
start_session(settings)
other = SparkSettings(home=settings.home, conf={"spark.sql.shuffle.partitions": "7"})
report["other"] = open_session(other).conf.get("spark.sql.shuffle.partitions")
end_session()
start_session(SparkSettings(home=settings.home, master="spark://127.0.0.1:1"))
report["not_for_clusters"] = [process.pid for process in family()]
start_session(settings)
report["ended_before_it_was_open"] = end_session()
os.rmdir(tempfile.tempdir)
print(json.dumps(report))
"""

ENDED_WHILE_OPENING = """
import threading, time
from batch_pipeline.spark.session import end_session, open_in_background, start_session
for delay_seconds in (0.2, 0.6, 0.8, 1.0, 1.2):
    start_session(settings)
    open_in_background()
    opening = threading.enumerate()[-1]
    time.sleep(delay_seconds)
    end_session()
    opening.join()
    close_session()
print(json.dumps([process.pid for process in family()]))
"""

FOLDER_OF_USER = """
from batch_pipeline.spark.session import end_session
small_tasks(open_engine(settings))
end_session()
print(json.dumps(os.listdir(os.environ["SPARK_LOCAL_DIRS"])))
"""

OTHER_SESSION = """
import warnings
from pyspark.sql import SparkSession
from batch_pipeline.spark.java import find_java_home
warnings.simplefilter("ignore", ResourceWarning)  # pyspark's own
os.environ["JAVA_HOME"] = str(find_java_home(settings.home, os.environ))
other = SparkSession.builder.master("local[1]").getOrCreate()
try:
    open_engine(settings)
except PipelineError as error:
    print(json.dumps([type(error).__name__, other.range(3).count()]))
other.stop()
print(json.dumps(small_tasks(open_engine(settings))))
close_session()
"""

HELD_OPEN = """
open_session(settings)
print(json.dumps([process.pid for process in family()]), flush=True)
sys.stdin.read()
"""

SERVER_HELD_OPEN = """
from batch_pipeline.spark.spark_connect import SparkConnectServer
SparkConnectServer(settings.home).start()
print(json.dumps([process.pid for process in family()]), flush=True)
sys.stdin.read()
"""

UPLOAD_FAILS = """
import grpc
from pyspark.sql.connect.session import SparkSession
from batch_pipeline.spark import spark_connect
def fail(*_):
    raise grpc.RpcError("connection reset")
spark_connect.check_archive, spark_connect.attach_archive = Path, fail
try:
    spark_connect.ConnectSession(settings.remote, {}, packed="")
except PipelineError as error:
    print(json.dumps([str(error).partition(".")[0], SparkSession.getActiveSession() is None]))
"""

# Every other warning is an error.
WARNINGS = ("error", "ignore:PySpark does not yet fully support pandas:FutureWarning")
EXPECTED_REPORTS = [f"0 b'a' {sys.executable}", f"1 b'b' {sys.executable}"]
EXPECTED_ROWS = [[0, sys.executable], [2, sys.executable], [4, sys.executable]]


def process_options(program: str, home: Path, variables: dict[str, str]) -> dict[str, Any]:
    """Return the `subprocess` options that run a program in an empty folder.

    Its environment has no variables of a session of this process.
    """
    folder = home / "empty"
    folder.mkdir(parents=True, exist_ok=True)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    flags = [f"-W{warning}" for warning in WARNINGS]
    command = [sys.executable, *flags, "-c", COMMON + program, str(home)]
    return {"args": command, "env": clean | variables, "cwd": folder}


def run(program: str, home: Path, **variables: str) -> Any:
    """Run a program that prints one JSON value and writes nothing else."""
    options = process_options(program, home, variables)
    done = subprocess.run(**options, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert list(options["cwd"].iterdir()) == []
    return json.loads(done.stdout)


def kill_owner(program: str, home: Path, java: str) -> list[int]:
    """Kill a program that prints process ids, and return the processes that survive it."""
    options = process_options(program, home, {"BATCH_PIPELINE_JAVA": java})
    with subprocess.Popen(**options, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        children = [psutil.Process(pid) for pid in json.loads(owner.stdout.readline())]
        assert "java" in {child.name() for child in children}
        owner.send_signal(signal.SIGKILL)
    _, alive = psutil.wait_procs(children, timeout=300)
    return [process.pid for process in alive]


def _exists(pid: int) -> bool:
    try:
        return is_running(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return False


@pytest.mark.long
def test_lifecycle_of_local_session(tmp_path: Path) -> None:
    home = tmp_path / "it's a home"
    report = run(LIFECYCLE, home, BATCH_PIPELINE_JAVA="bundled")
    # A process that exits without closing the session leaves no processes or temporary folders.
    assert [pid for pid in report.pop("left_open") if _exists(pid)] == []
    assert list((home / "spark" / "scratch").iterdir()) == []
    assert report == {
        "reports": EXPECTED_REPORTS,  # by the Python that started the session
        "engine": True,  # the session is opened on the engine
        "rows": EXPECTED_ROWS,  # over Arrow batches
        "changed_variables": ["SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE"],  # no secret
        "same": True,  # for equal settings
        "time_zone": "UTC",
        "error": "ConflictError",  # other settings while a session is open
        "alive_after_close": [],
        "replacement": "7",
        "of_numpy": "7",
        "reports_after_crash": EXPECTED_REPORTS,  # after a crash of the JVM
        "reports_after_crash_of_context": EXPECTED_REPORTS,
        "rows_after_crash": EXPECTED_ROWS,
    }


@pytest.mark.long
def test_tasks_of_encrypted_engine_get_their_payloads(tmp_path: Path) -> None:
    """PySpark sends payloads another way."""
    assert run(ENCRYPTED, tmp_path) == EXPECTED_REPORTS


@pytest.mark.long
def test_local_session_started_in_advance(tmp_path: Path) -> None:
    home = tmp_path / "it's a home"
    assert run(STARTED_IN_ADVANCE, home, BATCH_PIPELINE_JAVA="bundled") == {
        "imported": [],  # so that the thread does not get in the way of other imports
        "reports": EXPECTED_REPORTS,
        "rows": EXPECTED_ROWS,
        "ended": True,
        "left": [],
        "temporary": [],
        "reports_after_end": EXPECTED_REPORTS,
        "rows_after_end": EXPECTED_ROWS,
        "other": "7",
        "not_for_clusters": [],
        "ended_before_it_was_open": True,
    }
    assert list((home / "spark" / "scratch").iterdir()) == []


def test_local_session_ended_while_opening_prints_nothing(tmp_path: Path) -> None:
    assert run(ENDED_WHILE_OPENING, tmp_path, BATCH_PIPELINE_JAVA="bundled") == []
    assert list((tmp_path / "spark" / "scratch").iterdir()) == []


@pytest.mark.long
def test_ended_session_leaves_nothing_in_local_folder_of_user(tmp_path: Path) -> None:
    folder = tmp_path / "local"
    folder.mkdir()
    assert run(FOLDER_OF_USER, tmp_path, SPARK_LOCAL_DIRS=str(folder)) == []


@pytest.mark.long
def test_session_that_the_user_opened_is_neither_broken_nor_continued(tmp_path: Path) -> None:
    """The first line is printed while it is open, the second after it was stopped."""
    options = process_options(OTHER_SESSION, tmp_path, {})
    done = subprocess.run(**options, capture_output=True, timeout=300, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines == [["SparkUnavailableError", 3], EXPECTED_REPORTS]


@pytest.mark.long
@both_javas
def test_local_session_ignores_damaged_class_data_archive(
    java: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCH_PIPELINE_JAVA", java)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    damaged = archive_path(find_java_home(tmp_path, os.environ))
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(b"no archive" * 1000)
    assert run(SMALL_JOB, tmp_path) == EXPECTED_ROWS


def test_jvm_ends_when_owner_of_local_session_is_killed(tmp_path: Path) -> None:
    assert kill_owner(HELD_OPEN, tmp_path, "auto") == []


@pytest.mark.long
@pytest.mark.guarantee("L1")
def test_clients_of_a_server_share_the_python_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Successive clients leave one daemon; sessions with other code have their own.

    Workers can import this package; an address on the loopback interface requires no TLS.
    """

    def count_daemons() -> int:
        count = 0
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):  # it has ended
                parent = process.parent()
                is_java = parent is not None and parent.name() == "java"
                count += is_java and DAEMON_MODULE in process.cmdline()
        return count

    monkeypatch.setenv("BATCH_PIPELINE_JAVA", "bundled")
    with SparkConnectServer(tmp_path) as server:
        before, remote = count_daemons(), server.remote
        for address in (remote, remote, remote.replace("localhost", "127.0.0.1")):
            assert run(SMALL_JOB, tmp_path, REMOTE=address) == EXPECTED_ROWS
        assert count_daemons() == before + 1
        for _ in range(2):
            run(SMALL_JOB, tmp_path, REMOTE=without_session_id(remote))
        assert count_daemons() == before + 3
        message, is_released = run(UPLOAD_FAILS, tmp_path, REMOTE=remote)
        address = remote.partition("/;")[0]
        assert message == f"Spark at {address} cannot be used (connection reset)"
        assert is_released


@pytest.mark.parametrize(
    ("remote", "error", "message"),
    [
        ("sc://localhost:{port}/;token=hidden", SparkUnavailableError, "Spark at sc://localhost:"),
        ("http://host/;token=hidden", InvalidValueError, "the Spark Connect address is"),
        ("sc://host:1;token=hidden", InvalidValueError, "the Spark Connect address is"),
        ("sc://a..b:1/;token=hidden", InvalidValueError, "the Spark Connect address is"),
    ],
    ids=["nothing listens", "no address", "no slash", "no host name"],
)
def test_error_of_connect_session_does_not_show_its_token(
    tmp_path: Path, remote: str, error: type[Exception], message: str
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        remote = remote.format(port=unused.getsockname()[1])
        settings = SparkSettings(home=tmp_path, remote=remote)
        with pytest.raises(error, match=f"^{message}") as raised:
            open_session(settings)
    assert "hidden" not in f"{raised.value} {settings.target}"


def test_home_that_cannot_be_written_is_a_retryable_error(tmp_path: Path) -> None:
    (tmp_path / "spark").write_text("")
    for start in (
        partial(LocalSession, tmp_path, "local[*]", {}),
        SparkConnectServer(tmp_path).start,
    ):
        with pytest.raises(SparkUnavailableError, match=r"(?i)file exists|not a directory"):
            start()


def test_server_ends_with_its_guardian(tmp_path: Path) -> None:
    with run_while_parent_lives.start(["sleep", "60"], os.environ, tmp_path / "log") as guardian:
        process = psutil.Process(guardian.pid)
        eventually(lambda: process.num_threads() == 2)  # it handles signals now
        [server] = process.children()
        guardian.terminate()
        # Not by SIGKILL.
        assert guardian.wait(run_while_parent_lives.GRACE_SECONDS) == 128 + signal.SIGTERM
    assert not is_running(server)


@pytest.mark.long
def test_stopped_connect_server_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Java of the system is used, if any."""
    monkeypatch.setenv("BATCH_PIPELINE_JAVA", "auto")
    before = set(psutil.Process().children(recursive=True))
    with SparkConnectServer(tmp_path) as started:
        assert run(SMALL_JOB, tmp_path, REMOTE=started.remote) == EXPECTED_ROWS
        family = set(psutil.Process().children(recursive=True)) - before
        assert len(family) >= 3  # guardian, JVM, worker daemon
    assert [process for process in family if is_running(process)] == []


@pytest.mark.long
@both_javas
def test_connect_server_ends_when_its_owner_is_killed(java: str, tmp_path: Path) -> None:
    assert kill_owner(SERVER_HELD_OPEN, tmp_path, java) == []


def test_connect_server_with_bad_setting_reports_last_log_lines(tmp_path: Path) -> None:
    broken = SparkConnectServer(tmp_path, conf={"spark.driver.memory": "plenty"})
    with pytest.raises(SparkUnavailableError, match=r"it ended with exit code 1.*plenty"):
        broken.start()
