"""Spark masters and clusters: where their executors run, and the settings of a driver for them."""

import ipaddress
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

from batch_pipeline.model.errors import SparkUnavailableError
from batch_pipeline.spark.packed_archive import ARCHIVE_FOLDER
from batch_pipeline.spark.sessions import launch

CONNECT_TIMEOUT_SECONDS = 5
_STANDALONE = "spark://"
_STANDALONE_PORT = 7077


class ExecutorLocation(StrEnum):
    """Where tasks run: threads of the driver, processes on its machine, or other machines."""

    DRIVER = "driver"
    SAME_MACHINE = "same_machine"
    REMOTE = "remote"


def locate_executors(master: str) -> ExecutorLocation:
    """Return where the executors of a master run.

    A standalone master on the loopback interface has its workers on this machine, because no other
    machine can reach it.
    """
    if re.fullmatch(r"local(\[.*\])?", master):
        return ExecutorLocation.DRIVER
    if is_local_cluster(master):
        return ExecutorLocation.SAME_MACHINE
    addresses = _standalone_addresses(master)
    if addresses and all(_is_loopback(host) for host, _ in addresses):
        return ExecutorLocation.SAME_MACHINE
    return ExecutorLocation.REMOTE


def runs_in_driver(master: str) -> bool:
    """Return whether tasks run in the driver's JVM, so that no other machine or process does."""
    return locate_executors(master) is ExecutorLocation.DRIVER


def is_local_cluster(master: str) -> bool:
    """Return whether the driver itself starts the executors, as processes of its user."""
    return master.startswith("local-cluster[")


def check_reachable(master: str, timeout_seconds: float = CONNECT_TIMEOUT_SECONDS) -> None:
    """Connect to a standalone master once; Spark itself reports a failure after a minute.

    Raises:
        SparkUnavailableError: none of its addresses accepts a connection.
    """
    reasons: list[str] = []
    for host, port in _standalone_addresses(master):
        try:
            socket.create_connection((host, port), timeout=timeout_seconds).close()
            return
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


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


# The driver's S3 settings that executors get, too. Keys are not among them: Spark's web pages and
# logs show its settings.
_FORWARDED_VARIABLES = (
    "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_REGION",
)
_EXECUTOR_ENVIRONMENT = "spark.executorEnv."
_PYTHON = "spark.pyspark.python"
_ARCHIVES = "spark.archives"
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A master whose executors are processes of their own, and the driver's `environment`.

    `packed` is the archive of the modules that tasks import, if one is used.
    """

    master: str
    environment: Mapping[str, str] = field(repr=False)
    packed: Path | None = None

    @property
    def is_on_this_machine(self) -> bool:
        """Whether no other machine has to reach the driver."""
        return locate_executors(self.master) is ExecutorLocation.SAME_MACHINE

    def conf(
        self, home: Path, scratch: Path, options: Sequence[str], conf: Mapping[str, str]
    ) -> dict[str, str]:
        """Return the driver's settings: `conf` wins over Spark's own file, and that over these."""
        user_conf = spark_defaults(self.environment) | dict(conf)
        python = user_conf.get(_PYTHON) or self.environment.get("PYSPARK_PYTHON")
        python = python or self._default_python
        java_options = launch.java_options(home, options)
        return {
            **launch.driver_conf(home, on_this_machine=self.is_on_this_machine),
            **self._worker_conf(scratch, python),
            **self._forwarded_environment(),
            **launch.session_conf(user_conf),
            **self._archive_conf(user_conf),
            _PYTHON: python,
            _JAVA_OPTIONS: " ".join([*java_options, user_conf.get(_JAVA_OPTIONS, "")]).rstrip(),
            "spark.master": self.master,
        }

    def driver_environment(self, java: Path, scratch: Path, python: str) -> dict[str, str]:
        """Return the environment variables of the driver's JVM."""
        variables = launch.jvm_environment(java, self.environment)
        if not self.is_on_this_machine:
            del variables["SPARK_LOCAL_IP"]
        if "SPARK_LOCAL_IP" in self.environment:
            variables["SPARK_LOCAL_IP"] = self.environment["SPARK_LOCAL_IP"]
        if is_local_cluster(self.master):
            variables["SPARK_HOME"] = str(launch.create_worker_home(scratch))
        return {"SPARK_LOCAL_DIRS": str(scratch)} | variables | {"PYSPARK_PYTHON": python}

    @property
    def _default_python(self) -> str:
        if self.is_on_this_machine:
            return sys.executable
        return f"python{sys.version_info.major}.{sys.version_info.minor}"

    def _worker_conf(self, scratch: Path, python: str) -> dict[str, str]:
        # The daemon forks workers that have imported everything. An executor's Python has it for
        # sure only if it is this one or gets the archive.
        has_daemon = self.packed is not None or python == sys.executable
        daemon = {"spark.python.daemon.module": launch.DAEMON_MODULE} if has_daemon else {}
        # Unix sockets need a folder that every executor can write, and other machines may have a
        # Java that does not know these options.
        if is_local_cluster(self.master):
            java_options = {"spark.executor.extraJavaOptions": " ".join(launch.JVM_OPTIONS)}
            return {**daemon, **launch.socket_conf(scratch), **java_options}
        return daemon

    def _forwarded_environment(self) -> dict[str, str]:
        values = {name: self.environment.get(name, "") for name in _FORWARDED_VARIABLES}
        return {
            f"{_EXECUTOR_ENVIRONMENT}{name}": value
            for name, value in values.items()
            if value and "@" not in urlsplit(value).netloc  # a user or password
        }

    def _archive_conf(self, user_conf: Mapping[str, str]) -> dict[str, str]:
        if self.packed is None:
            return {}
        archive = f"{self.packed.as_uri()}#{ARCHIVE_FOLDER}"
        # Executors unpack it in their working folder. The workers of a Connect server's clients
        # work in a folder below that.
        path = f"{_EXECUTOR_ENVIRONMENT}PYTHONPATH"
        folders = (ARCHIVE_FOLDER, f"../{ARCHIVE_FOLDER}", user_conf.get(path, ""))
        return {
            _ARCHIVES: ",".join(filter(None, (user_conf.get(_ARCHIVES, ""), archive))),
            path: ":".join(filter(None, folders)),
        }


def spark_defaults(environment: Mapping[str, str]) -> dict[str, str]:
    """Read `spark-defaults.conf` from where Spark reads it; empty if there is none.

    Spark would apply the file by itself, but below the settings that this package passes to it.
    """
    folder = environment.get("SPARK_CONF_DIR")
    file = (Path(folder) if folder else launch.spark_home() / "conf") / "spark-defaults.conf"
    if not file.is_file():
        return {}
    conf: dict[str, str] = {}
    text = re.sub(r"\\\r?\n\s*", "", file.read_text(encoding="utf-8"))
    for line in map(str.strip, text.splitlines()):
        setting = re.fullmatch(r"([^#!\s=:][^\s=:]*)\s*[=:\s]\s*(.*)", line)
        if setting is not None:
            conf[setting.group(1)] = re.sub(r"\\(.)", r"\1", setting.group(2))
    return conf
