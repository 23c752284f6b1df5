"""Settings, environment, folders and logs of the JVMs that this package starts.

Shared by local sessions and the Connect server. Starts no process and does not import pyspark.
"""

import hashlib
import importlib.util
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from batch_pipeline.model.errors import SparkUnavailableError

APP_NAME = "batch-pipeline"
LOOPBACK = "127.0.0.1"
DAEMON_MODULE = "batch_pipeline.spark.sessions.worker_daemon"
_MAX_LOG_BYTES = 10_000_000
_SCRATCH = "{scratch}"  # stands for the scratch folder in stored commands
_SOCKETS = "sockets"
_MAX_SOCKET_FOLDER_BYTES = 60  # a socket's path may have 107, and Spark's names take 43

# The JVM has little to do, since records stay in Python: the first-tier compiler and the serial
# collector start fastest. A user's `spark.driver.extraJavaOptions` come later and win.
JVM_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData")

# Set by other Spark sessions of this process or its parents; a new JVM must not obey them.
_OTHER_SESSION_VARIABLES = (
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

_LOG4J_FILE = "log4j2.properties"
_LOG4J = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yyyy-MM-dd'T'HH:mm:ss.SSSXXX}{UTC} %p %c{1}: %m%n%ex
"""


def spark_home() -> Path:
    """Return the folder of Spark inside the installed pyspark, without importing it.

    Raises:
        SparkUnavailableError: pyspark is not installed.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SparkUnavailableError("local", "the package pyspark is not installed")
    return Path(spec.origin).parent


def session_conf(conf: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of every session, wherever its JVM runs; `conf` wins."""
    return {
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "4",
        **conf,
    }


def driver_conf(home: Path, *, on_this_machine: bool) -> dict[str, str]:
    """Return the settings of every driver that this package starts."""
    loopback = {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
    return {
        "spark.app.name": APP_NAME,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": (home / "spark" / "warehouse").as_uri(),
        **(loopback if on_this_machine else {}),
    }


def local_conf(
    home: Path, scratch: Path, options: Sequence[str], conf: Mapping[str, str]
) -> dict[str, str]:
    """Return the settings of a JVM that runs tasks itself; `conf` wins, Java options are added."""
    # A JVM that is killed then leaves nothing in the system's temporary folder.
    own_options = java_options(home, [*options, f'"-Djava.io.tmpdir={scratch}"'])
    user_options = conf.get("spark.driver.extraJavaOptions", "")
    return {
        **driver_conf(home, on_this_machine=True),
        # Its ports are on the loopback interface, which all users of this machine share.
        "spark.authenticate": "true",
        "spark.local.dir": str(scratch),
        "spark.pyspark.python": sys.executable,
        "spark.python.daemon.module": DAEMON_MODULE,
        "spark.python.use.daemon": "true",
        "spark.python.worker.reuse": "true",
        **socket_conf(scratch),
        **session_conf(conf),
        "spark.driver.extraJavaOptions": " ".join([*own_options, user_options]).rstrip(),
    }


def java_options(home: Path, options: Sequence[str]) -> list[str]:
    """Return the Java options of a JVM that this package starts, followed by `options`."""
    log4j = write_file(home.absolute() / "spark" / _LOG4J_FILE, _LOG4J).as_uri()
    return [*JVM_OPTIONS, *options, f"-Dlog4j2.configurationFile={log4j}"]


def create_worker_home(scratch: Path) -> Path:
    """Create a Spark home of symbolic links in a scratch folder and return it.

    The workers of a `local-cluster` write into their Spark home, which is else the installed
    package.
    """
    home = scratch / "spark-home"
    (home / "work").mkdir(parents=True)
    for entry in spark_home().iterdir():
        if entry.name != "work":
            (home / entry.name).symlink_to(entry)
    return home


def jvm_environment(java: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a JVM: the given one without variables of other sessions."""
    inherited = {
        name: value for name, value in environment.items() if name not in _OTHER_SESSION_VARIABLES
    }
    if sys.platform == "darwin":
        # Workers are forks, and macOS kills forks of a process that has used its frameworks.
        inherited["OBJC_DISABLE_INITIALIZE_FORK_SAFETY"] = "YES"
    return inherited | {
        "JAVA_HOME": str(java),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONHASHSEED": "0",  # as spark-submit sets it, for the workers
        "SPARK_CONNECT_MODE": "0",
        "SPARK_HOME": str(spark_home()),
        "SPARK_LAUNCHER_OPTS": " ".join(JVM_OPTIONS),
        "SPARK_LOCAL_IP": LOOPBACK,
    }


class DriverCommand:
    """The command that starts a driver's JVM with settings.

    spark-submit starts a JVM of its own to build the command of the driver's, which takes 0.15 s.
    So the command that it built is stored below the home, and is used for equal settings.
    """

    def __init__(
        self,
        home: Path,
        scratch: Path,
        conf: Mapping[str, str],
        environment: Mapping[str, str],
        *arguments: str,
    ) -> None:
        """Write the settings to a file in `scratch`, because all users see command lines."""
        self._scratch = str(scratch)
        self._properties = properties_file(scratch, conf)
        self._arguments = arguments
        self._stored: Path | None = None
        conf_folder = Path(environment.get("SPARK_CONF_DIR") or spark_home() / "conf")
        if not (conf_folder / "spark-env.sh").exists():  # spark-submit runs it
            self._stored = home / "spark" / f"command-{self._digest(conf, environment)}.json"

    def words(self) -> list[str]:
        """Return the program and its arguments."""
        if self._stored is not None:
            with suppress(OSError, ValueError):
                words = json.loads(self._stored.read_text(encoding="utf-8"))
                return [word.replace(_SCRATCH, self._scratch) for word in words]
        options = ["--load-spark-defaults", "--properties-file", str(self._properties)]
        return [str(spark_home() / "bin" / "spark-submit"), *options, *self._arguments]

    def store(self, pid: int) -> None:
        """Store the command line of the driver that runs, and delete its file of settings."""
        self._properties.unlink()
        if self._stored is None or self._stored.exists():
            return
        with suppress(psutil.Error):
            words = psutil.Process(pid).cmdline()
            text = json.dumps([word.replace(self._scratch, _SCRATCH) for word in words])
            write_file(self._stored, text)

    def _digest(self, conf: Mapping[str, str], environment: Mapping[str, str]) -> str:
        defaults = Path(environment.get("SPARK_CONF_DIR") or spark_home() / "conf")
        known = {
            "java": java_identity(Path(environment["JAVA_HOME"])),
            "arguments": self._arguments,
            "conf": {name: value for name, value in conf.items() if "driver" in name},
            "environment": {
                name: value
                for name, value in environment.items()
                if name.startswith(("SPARK_", "HADOOP_", "YARN_", "JAVA_"))
                and name != "SPARK_CONNECT_AUTHENTICATE_TOKEN"
            },
            "defaults": _read(defaults / "spark-defaults.conf"),
        }
        text = json.dumps(known, sort_keys=True).replace(self._scratch, _SCRATCH)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def java_identity(java: Path) -> list[str]:
    """Return what identifies a Java runtime, the installed Spark, and how both are started."""
    release, jars = (java / "release").resolve(), spark_home() / "jars"
    # The runtime's own folder, by its file `release`: wrappers of it differ from home to home.
    identity = [str(release.parent), str(jars), str(jars.stat().st_mtime_ns), *JVM_OPTIONS]
    return [*identity, _read(release)] if release.exists() else identity


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def create_scratch(home: Path) -> Path:
    """Create a folder for the temporary files of one JVM, and delete those of ended processes.

    Its name starts with the id of the calling process, its owner.
    """
    root = home / "spark" / "scratch"
    root.mkdir(parents=True, exist_ok=True)
    for folder in root.iterdir():
        owner = folder.name.partition("-")[0]
        if owner.isdecimal() and not psutil.pid_exists(int(owner)):
            delete_scratch(folder)
    return Path(tempfile.mkdtemp(dir=root, prefix=f"{os.getpid()}-"))


def delete_scratch(scratch: Path) -> None:
    """Delete the folder of one JVM and its socket folder; ignores what cannot be deleted."""
    sockets = scratch / _SOCKETS
    if sockets.is_symlink():
        shutil.rmtree(sockets.resolve(), ignore_errors=True)
    shutil.rmtree(scratch, ignore_errors=True)


def socket_conf(scratch: Path) -> dict[str, str]:
    """Return the settings by which JVM and workers use Unix sockets; none if paths are too long.

    Only their owner can open them, and over TCP a short task waits 40 ms for an acknowledgement
    that the kernel delays. The path of a socket has 107 bytes at most, so the sockets of a deep
    scratch folder are in a temporary folder that it links to.
    """
    folder = scratch
    if len(os.fsencode(scratch)) > _MAX_SOCKET_FOLDER_BYTES:
        link = scratch / _SOCKETS
        if not link.is_symlink():
            link.symlink_to(tempfile.mkdtemp(prefix="bp-"), target_is_directory=True)
        folder = link.readlink()
    if len(os.fsencode(folder)) > _MAX_SOCKET_FOLDER_BYTES:
        return {}
    return {
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": str(folder),
    }


def properties_file(folder: Path, conf: Mapping[str, str]) -> Path:
    """Write a Java properties file that only its owner can read."""
    path = folder / "spark.properties"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.writelines(f"{key}={_escaped(value)}\n" for key, value in conf.items())
    return path


def rotate_log(home: Path, name: str) -> Path:
    """Return the path of a log below `home`, after moving one above 10 MB to `.old.log`."""
    log = home / "logs" / name
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.exists() and log.stat().st_size > _MAX_LOG_BYTES:
        log.replace(log.with_suffix(".old.log"))
    return log


def last_lines(log: Path, *, start: int, count: int = 5) -> str:
    """Return the last lines that were logged after byte `start`, joined by ` | `."""
    with log.open("rb") as file:
        file.seek(max(start, log.stat().st_size - 20_000))
        text = file.read().decode("utf-8", errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " | ".join(lines[-count:]) or f"nothing was logged in {log}"


def write_file(path: Path, text: str, mode: int = 0o600) -> Path:
    """Write a file as a whole unless it is there with this text and mode; return its path."""
    with suppress(OSError, UnicodeDecodeError):
        if path.stat().st_mode & 0o777 == mode and path.read_text(encoding="utf-8") == text:
            return path
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    Path(temporary).chmod(mode)
    Path(temporary).replace(path)
    return path


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
