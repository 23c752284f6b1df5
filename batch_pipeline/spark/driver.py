"""A driver's JVM: settings and environment by Spark master, command, temporary files, log, exit.

Shared by the sessions of this process and the Connect server. Does not import pyspark.
"""

import ipaddress
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from batch_pipeline.model.errors import SparkUnavailableError
from batch_pipeline.spark.executor_archive import ARCHIVE_FOLDER, check_archive
from batch_pipeline.spark.java import (
    archive_options,
    find_java_home,
    jvm_options,
    spark_home,
    write_file,
)

APP_NAME = "batch-pipeline"
LOOPBACK = "127.0.0.1"
DAEMON_MODULE = "batch_pipeline.spark.worker_daemon"
CONNECT_TIMEOUT_SECONDS = 5
KILL_TIMEOUT_SECONDS = 2
_STANDALONE = "spark://"
_STANDALONE_PORT = 7077
_MAX_LOG_BYTES = 10_000_000
_SOCKETS = "sockets"
_created: set[str] = set()  # the names of this process's scratch folders
_MAX_SOCKET_FOLDER_BYTES = 60  # a socket's path may have 107, and Spark's names take 43

_ARCHIVES = "spark.archives"
_EXECUTOR_ENVIRONMENT = "spark.executorEnv."
_DEFAULT_OPTIONS = "spark.driver.defaultJavaOptions"
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_PYTHON = "spark.pyspark.python"

# The driver's S3 settings that executors get, too. Access keys are not among them, because Spark's
# web pages and logs show its settings.
_FORWARDED_VARIABLES = (
    "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_REGION",
)

# Set by other Spark sessions of this process or its parents; a new JVM must ignore them.
OTHER_SESSION_VARIABLES = (
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

_LOG4J = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yyyy-MM-dd'T'HH:mm:ss.SSSXXX}{UTC} %p %c{1}: %m%n%ex
"""


def runs_in_driver(master: str) -> bool:
    """Return whether tasks run in the driver's JVM, so that there are no executors."""
    return re.fullmatch(r"local(\[.*\])?", master) is not None


def runs_on_this_machine(master: str) -> bool:
    """Return whether no other machine has to reach the driver.

    A standalone master on the loopback interface has its workers on this machine, because no other
    machine can reach it.
    """
    if runs_in_driver(master) or _is_local_cluster(master):
        return True
    addresses = _standalone_addresses(master)
    return bool(addresses) and all(is_loopback(host) for host, _ in addresses)


def _is_local_cluster(master: str) -> bool:
    """Return whether the driver itself starts the executors, as processes of its user."""
    return master.startswith("local-cluster[")


def check_cluster(master: str, packed: Path | None) -> None:
    """Check the archive for executors, and connect to a standalone master once.

    Spark itself reports a failure only after a minute. Has no effect if tasks run in the driver.

    Raises:
        ConfigurationError: the archive does not exist, or is for another Python or release.
        SparkUnavailableError: none of the master's addresses accepts a connection.
    """
    if packed is not None and not runs_in_driver(master):
        check_archive(packed)
    reasons: list[str] = []
    for host, port in _standalone_addresses(master):
        try:
            socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_SECONDS).close()
            return
        except UnicodeError:
            reasons.append("its host name is invalid")
        except OSError as error:
            reasons.append((error.strerror or "no answer in time").lower())
    if reasons:
        raise SparkUnavailableError(master, reasons[-1])


def _standalone_addresses(master: str) -> list[tuple[str, int]]:
    """Return host and port of each address of a standalone master; none for other masters."""
    if not master.startswith(_STANDALONE):
        return []
    addresses: list[tuple[str, int]] = []
    for address in master.removeprefix(_STANDALONE).split(","):
        host, _, port = address.rpartition(":")
        if host and port.isdecimal():
            addresses.append((host.strip("[]"), int(port)))
        elif address:
            addresses.append((address.strip("[]"), _STANDALONE_PORT))
    return addresses


def is_loopback(host: str) -> bool:
    """Return whether a host is the loopback interface of this machine."""
    if host == "localhost":
        return True
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def session_conf(conf: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of every session, wherever its JVM runs; `conf` wins."""
    return {
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "4",
        **conf,
    }


def driver_settings(
    home: Path,
    scratch: Path,
    conf: Mapping[str, str],
    packed: Path | None,
    environment: Mapping[str, str] = os.environ,
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the settings and the environment of a driver's JVM on the `spark.master` of `conf`.

    `conf` overrides the settings made here, and on clusters so does Spark's own settings file,
    except for the master. Java options are added. `packed` is the archive of the modules that tasks
    import, if one is used.

    Raises:
        ConfigurationError: there is no Java.
    """
    java, master = find_java_home(home, environment), conf["spark.master"]
    log4j = write_file(home.absolute() / "spark" / "log4j2.properties", _LOG4J).as_uri()
    variables = _jvm_environment(java, environment)
    settings, user_conf = _common_conf(home, master), {**spark_defaults(environment), **conf}
    user_options = user_conf.get(_JAVA_OPTIONS, "")
    java_options = jvm_options(environment, f"{user_conf.get(_DEFAULT_OPTIONS)} {user_options}")
    java_options += [*archive_options(java), f"-Dlog4j2.configurationFile={log4j}"]
    if runs_in_driver(master):
        # A JVM that is killed then leaves nothing in the system's temporary folder.
        java_options.append(f'"-Djava.io.tmpdir={scratch}"')
        settings |= _local_conf(scratch) | session_conf(conf)
        variables.pop("CONTAINER_ID", None)  # Spark takes it for that of a YARN container
        variables |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": LOOPBACK}
    else:
        settings |= _cluster_conf(master, scratch, user_conf, packed, environment)
        variables["PYSPARK_PYTHON"] = settings[_PYTHON]
        variables.setdefault("SPARK_LOCAL_DIRS", str(scratch))
        if runs_on_this_machine(master):
            variables.setdefault("SPARK_LOCAL_IP", LOOPBACK)
        if _is_local_cluster(master):
            variables["SPARK_HOME"] = str(_create_worker_home(scratch))
    settings[_JAVA_OPTIONS] = " ".join([*java_options, user_options]).rstrip()
    return settings | {"spark.master": master}, variables


def _common_conf(home: Path, master: str) -> dict[str, str]:
    """Return the settings of every driver that this package starts."""
    loopback = {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
    return {
        "spark.app.name": APP_NAME,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": (home / "spark" / "warehouse").as_uri(),
        **(loopback if runs_on_this_machine(master) else {}),
    }


def _local_conf(scratch: Path) -> dict[str, str]:
    """Return the settings of a JVM that runs tasks itself."""
    return {
        # Its ports are on the loopback interface, which all users of this machine share.
        "spark.authenticate": "true",
        "spark.local.dir": str(scratch),
        _PYTHON: sys.executable,
        "spark.python.daemon.module": DAEMON_MODULE,
        "spark.python.use.daemon": "true",
        "spark.python.worker.reuse": "true",
        **_socket_conf(scratch),
    }


def _cluster_conf(
    master: str,
    scratch: Path,
    user_conf: Mapping[str, str],
    packed: Path | None,
    environment: Mapping[str, str],
) -> dict[str, str]:
    """Return the settings of a driver whose executors are separate processes."""
    python = user_conf.get(_PYTHON) or environment.get("PYSPARK_PYTHON")
    if not python and runs_on_this_machine(master):
        python = sys.executable
    python = python or f"python{sys.version_info.major}.{sys.version_info.minor}"
    conf: dict[str, str] = {}
    # The daemon forks workers that have imported everything. An executor's Python certainly has the
    # daemon module only if it is this Python or gets the archive.
    if packed is not None or python == sys.executable:
        conf["spark.python.daemon.module"] = DAEMON_MODULE
    # Unix sockets need a folder that every executor can write, and other machines may have a Java
    # that does not know these options.
    if _is_local_cluster(master):
        options = jvm_options(environment)
        conf |= {"spark.executor.extraJavaOptions": " ".join(options), **_socket_conf(scratch)}
    for name in _FORWARDED_VARIABLES:
        value = environment.get(name, "")
        if value and "@" not in urlsplit(value).netloc:  # a user or password
            conf[f"{_EXECUTOR_ENVIRONMENT}{name}"] = value
    conf |= session_conf(user_conf) | {_PYTHON: python}
    if packed is not None:
        archive = f"{packed.as_uri()}#{ARCHIVE_FOLDER}"
        # Executors unpack it in their working folder. The workers of a Connect server's clients
        # work in a folder below that.
        path = f"{_EXECUTOR_ENVIRONMENT}PYTHONPATH"
        folders = (ARCHIVE_FOLDER, f"../{ARCHIVE_FOLDER}", user_conf.get(path, ""))
        conf[_ARCHIVES] = ",".join(filter(None, (user_conf.get(_ARCHIVES, ""), archive)))
        conf[path] = ":".join(filter(None, folders))
    return conf


def _create_worker_home(scratch: Path) -> Path:
    """Create a Spark home of symbolic links in a scratch folder and return it.

    The workers of a `local-cluster` write into their Spark home, which otherwise is the installed
    package.
    """
    home = scratch / "spark-home"
    (home / "work").mkdir(parents=True)
    for entry in spark_home().iterdir():
        if entry.name != "work":
            (home / entry.name).symlink_to(entry)
    return home


def _jvm_environment(java: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a JVM: `environment` without variables of other sessions."""
    inherited = {
        name: value for name, value in environment.items() if name not in OTHER_SESSION_VARIABLES
    }
    return inherited | {
        "JAVA_HOME": str(java),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONHASHSEED": "0",  # as spark-submit sets it, for the workers
        "SPARK_CONNECT_MODE": "0",
        "SPARK_HOME": str(spark_home()),
        "SPARK_LAUNCHER_OPTS": " ".join(jvm_options(environment)),
    }


def spark_defaults(environment: Mapping[str, str]) -> dict[str, str]:
    """Read `spark-defaults.conf` from Spark's own location; empty if there is none.

    Spark would apply the file itself, but with lower precedence than the settings that this package
    passes to it.
    """
    folder = Path(environment.get("SPARK_CONF_DIR") or spark_home() / "conf")
    file = folder / "spark-defaults.conf"
    if not file.is_file():
        return {}
    conf: dict[str, str] = {}
    text = file.read_text(encoding="utf-8", errors="replace")
    # A backslash continues a line, but not a comment.
    for lines in re.findall(r"\s*[#!].*|(?:\\[\s\S]|.)+", text):
        line = re.sub(r"\\\n\s*", "", lines).strip()
        setting = re.fullmatch(r"([^#!\s=:][^\s=:]*)\s*[=:\s]\s*(.*)", line)
        if setting is not None:
            conf[setting.group(1)] = re.sub(r"\\(.)", r"\1", setting.group(2))
    return conf


def driver_command(scratch: Path, conf: Mapping[str, str], *arguments: str) -> list[str]:
    """Return the command that starts a driver's JVM.

    Its settings are in a file in `scratch` that only its owner can read, because all users can see
    command lines.
    """
    properties = scratch / "spark.properties"
    descriptor = os.open(properties, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.writelines(f"{key}={_escaped(value)}\n" for key, value in conf.items())
    options = ["--load-spark-defaults", "--properties-file", str(properties)]
    return [str(spark_home() / "bin" / "spark-submit"), *options, *arguments]


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")


def create_scratch(home: Path) -> Path:
    """Create a folder for the temporary files of one JVM, and delete those of ended processes.

    Its name starts with the id of the calling process, its owner.
    """
    root = home / "spark" / "scratch"
    root.mkdir(parents=True, exist_ok=True)
    own = f"{os.getpid()}-"
    for folder in root.iterdir():
        owner = folder.name.partition("-")[0]
        # In a container, an ended process often had the same id as this one.
        is_of_earlier = folder.name.startswith(own) and folder.name not in _created
        if owner.isdecimal() and (is_of_earlier or not psutil.pid_exists(int(owner))):
            delete_scratch(folder)
    scratch = Path(tempfile.mkdtemp(dir=root, prefix=own))
    _created.add(scratch.name)
    return scratch


def delete_scratch(scratch: Path) -> None:
    """Delete the folder of one JVM and its socket folder; ignores what cannot be deleted."""
    sockets = scratch / _SOCKETS
    with suppress(OSError):  # there is none, or the scratch folder is another user's
        shutil.rmtree(sockets.readlink(), ignore_errors=True)
    shutil.rmtree(scratch, ignore_errors=True)


def _socket_conf(scratch: Path) -> dict[str, str]:
    """Return settings for Unix sockets between JVM and workers; none if paths are too long.

    Only their owner can open them, and over TCP a short task waits 40 ms for an acknowledgement
    that the kernel delays. The path of a socket has at most 107 bytes, so the sockets of a deeply
    nested scratch folder are in a temporary folder that it links to.
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


def rotate_log(home: Path, name: str) -> Path:
    """Return the path of a log below `home`; first rename a log above 10 MB to `.old.log`."""
    log = home / "logs" / name
    log.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):  # another process of the home may have renamed it
        if log.stat().st_size > _MAX_LOG_BYTES:
            log.replace(log.with_suffix(".old.log"))
    return log


def last_lines(log: Path, *, start: int) -> str:
    """Return the last five lines that were logged after byte `start`, joined by ` | `."""
    with log.open("rb") as file:
        file.seek(max(start, log.stat().st_size - 20_000))
        text = file.read().decode("utf-8", errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " | ".join(lines[-5:]) or f"nothing was logged in {log}"


def end_process(process: "subprocess.Popen[bytes]", timeout_seconds: float) -> None:
    """Close the standard input of a process, wait, and kill what is left of its tree."""
    children: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):
        children = psutil.Process(process.pid).children(recursive=True)
    if timeout_seconds == 0:
        process.kill()
    if process.stdin is not None:
        with suppress(BrokenPipeError):
            process.stdin.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=timeout_seconds)
    process.kill()
    process.wait()
    for child in children:
        with suppress(psutil.NoSuchProcess):
            child.kill()
    deadline = time.monotonic() + KILL_TIMEOUT_SECONDS
    while any(map(_is_running, children)) and time.monotonic() < deadline:
        time.sleep(0.005)


def _is_running(process: psutil.Process) -> bool:
    # Not `wait_procs`: it waits until the system has removed an ended process from its table, which
    # takes the first process of a container up to two seconds.
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
