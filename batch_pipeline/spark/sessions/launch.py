"""What a JVM of ours is started with: tuning, places for its files, environment, worker Python.

Shared by the one-shot session and the warm server. No process is started and no pyspark imported.
"""

import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from batch_pipeline.domain.errors import SparkUnavailableError

APP_NAME = "batch-pipeline"
LOOPBACK = "127.0.0.1"
DAEMON_MODULE = "batch_pipeline.spark.sessions.worker_daemon"
LOG_LIMIT_BYTES = 10_000_000
SOCKETS = "sockets"
SOCKET_FOLDER_BYTES = 60  # a socket's path may have 107, and Spark's names take 43

# Short work in the JVM (records stay in Python): the quick compiler and the plain collector start
# fastest. What a user sets in `spark.driver.extraJavaOptions` comes later and wins.
JVM_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData")

# Set by other Spark sessions of this process or its parents; a new JVM must not follow them.
FOREIGN_VARIABLES = (
    "MASTER",
    "PYSPARK_GATEWAY_PORT",
    "PYSPARK_GATEWAY_SECRET",
    "PYSPARK_SUBMIT_ARGS",
    "SPARK_API_MODE",
    "SPARK_CONNECT_AUTHENTICATE_TOKEN",
    "SPARK_CONNECT_MODE_ENABLED",
    "SPARK_ENV_LOADED",
    "SPARK_LOCAL_REMOTE",
    "SPARK_REMOTE",
)

LOG4J_FILE = "log4j2.properties"
LOG4J = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yyyy-MM-dd'T'HH:mm:ss.SSSXXX}{UTC} %p %c{1}: %m%n%ex
"""


def spark_home() -> Path:
    """Find the Spark distribution inside the installed pyspark, without importing it.

    Raises:
        SparkUnavailableError: pyspark is not installed.
    """
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise SparkUnavailableError("local", "the package pyspark is not installed")
    return Path(found.origin).parent


def session_conf(conf: Mapping[str, str]) -> dict[str, str]:
    """Give the settings that hold for every session, wherever its JVM runs; `conf` wins."""
    return {
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "4",
        **conf,
    }


def local_conf(
    home: Path, scratch: Path, options: Sequence[str], conf: Mapping[str, str]
) -> dict[str, str]:
    """Give the settings of a JVM on this machine; `conf` wins, but its Java options are added."""
    all_options = java_options(home, options)
    added = conf.get("spark.driver.extraJavaOptions", "")
    return {
        "spark.app.name": APP_NAME,
        # Its ports are on the loopback interface, which all users of this machine share.
        "spark.authenticate": "true",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
        "spark.local.dir": str(scratch),
        "spark.pyspark.python": sys.executable,
        "spark.python.daemon.module": DAEMON_MODULE,
        "spark.python.use.daemon": "true",
        "spark.python.worker.reuse": "true",
        **socket_conf(scratch),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": (home / "spark" / "warehouse").as_uri(),
        **session_conf(conf),
        "spark.driver.extraJavaOptions": " ".join([*all_options, added]).rstrip(),
    }


def java_options(home: Path, options: Sequence[str]) -> list[str]:
    """Give the Java options of a JVM of ours; `options` are added."""
    log4j = kept_file(home, LOG4J_FILE, LOG4J).as_uri()
    return [*JVM_OPTIONS, *options, f"-Dlog4j2.configurationFile={log4j}"]


def home_of_workers(scratch: Path) -> Path:
    """Make a Spark home, of links, whose workers write into a scratch folder.

    The master `local-cluster` has its workers write into the home itself: the installed package.
    """
    home = scratch / "spark-home"
    (home / "work").mkdir(parents=True)
    for entry in spark_home().iterdir():
        if entry.name != "work":
            (home / entry.name).symlink_to(entry)
    return home


def child_environment(java: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Give the environment of a local JVM: the caller's, without what belongs to other sessions."""
    inherited = {
        name: value for name, value in environment.items() if name not in FOREIGN_VARIABLES
    }
    if sys.platform == "darwin":
        # Workers are forks; macOS else kills forks of a process that has used its frameworks.
        inherited["OBJC_DISABLE_INITIALIZE_FORK_SAFETY"] = "YES"
    return inherited | {
        "JAVA_HOME": str(java),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_CONNECT_MODE": "0",
        "SPARK_HOME": str(spark_home()),
        "SPARK_LAUNCHER_OPTS": " ".join(JVM_OPTIONS),
        "SPARK_LOCAL_IP": LOOPBACK,
    }


def submit_command(properties: Path, *arguments: str) -> list[str]:
    """Give the command line; the configuration is in a file, where `ps` cannot see it."""
    submit = spark_home() / "bin" / "spark-submit"
    options = ["--load-spark-defaults", "--properties-file", str(properties)]
    return [str(submit), *options, *arguments]


def new_scratch(home: Path) -> Path:
    """Create a folder for the temporary files of one JVM; those of processes that died are removed.

    It belongs to the calling process, whose id starts its name.
    """
    root = home / "spark" / "scratch"
    root.mkdir(parents=True, exist_ok=True)
    for left in root.iterdir():
        owner = left.name.partition("-")[0]
        if owner.isdecimal() and not psutil.pid_exists(int(owner)):
            remove_scratch(left)
    return Path(tempfile.mkdtemp(dir=root, prefix=f"{os.getpid()}-"))


def remove_scratch(scratch: Path) -> None:
    """Remove the folder of one JVM and what belongs to it, as far as that is possible."""
    elsewhere = scratch / SOCKETS
    if elsewhere.is_symlink():
        shutil.rmtree(elsewhere.resolve(), ignore_errors=True)
    shutil.rmtree(scratch, ignore_errors=True)


def socket_conf(scratch: Path) -> dict[str, str]:
    """Let JVM and workers talk over sockets of the file system, which only their owner can open.

    Over TCP a short task waits 40 ms for an acknowledgement that the kernel delays. The path of
    such a socket is short, so a deep scratch folder has its sockets in another one.
    """
    folder = scratch
    if len(os.fsencode(scratch)) > SOCKET_FOLDER_BYTES:
        link = scratch / SOCKETS
        if not link.is_symlink():
            link.symlink_to(tempfile.mkdtemp(prefix="bp-"), target_is_directory=True)
        folder = link.readlink()
    if len(os.fsencode(folder)) > SOCKET_FOLDER_BYTES:
        return {}
    return {
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": str(folder),
    }


def properties_file(folder: Path, conf: Mapping[str, str]) -> Path:
    """Write a Java properties file that only its owner can read."""
    lines = [f"{key}={_escaped(value)}\n" for key, value in conf.items()]
    descriptor, name = tempfile.mkstemp(dir=folder, suffix=".properties")  # mode 0600
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.writelines(lines)
    return Path(name)


def log_file(home: Path, name: str) -> Path:
    """Give the path of a log below `home`; one that has grown too long starts anew."""
    log = home / "logs" / name
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.exists() and log.stat().st_size > LOG_LIMIT_BYTES:
        log.replace(log.with_suffix(".old.log"))
    return log


def last_lines(log: Path, *, start: int, count: int = 5) -> str:
    """Give the last lines that were logged after byte `start`, joined by ` | `."""
    with log.open("rb") as file:
        file.seek(max(start, log.stat().st_size - 20_000))
        text = file.read().decode("utf-8", errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " | ".join(lines[-count:]) or f"nothing was logged in {log}"


def kept_file(home: Path, name: str, text: str) -> Path:
    """Give the path of a file of Spark's settings below `home`, written whole where it differs."""
    path = home.absolute() / "spark" / name
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-")
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        Path(temporary).replace(path)
    return path


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
