"""What a driver tells a cluster: its address, the Python of the executors, what they import.

Settings and variables only. No process is started and no pyspark imported.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from batch_pipeline.spark.clusters.archive_note import PACKED_FOLDER
from batch_pipeline.spark.clusters.master import Place, is_local_cluster, place_of
from batch_pipeline.spark.sessions import launch

# What executors may know of the driver's access to S3; keys are theirs to have.
HANDED_ON = ("AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION")
_EXECUTOR_ENVIRONMENT = "spark.executorEnv."
_PYTHON = "spark.pyspark.python"
_ARCHIVES = "spark.archives"
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A master whose executors are processes of their own, as the driver's `environment` has it.

    `packed` is the archive of what tasks import, when there is one.
    """

    master: str
    environment: Mapping[str, str] = field(repr=False)
    packed: Path | None = None

    @property
    def is_on_this_machine(self) -> bool:
        """Tell whether nobody else has to reach the driver."""
        return place_of(self.master) is Place.MACHINE

    def conf(
        self, home: Path, scratch: Path, options: Sequence[str], conf: Mapping[str, str]
    ) -> dict[str, str]:
        """Give the settings of the driver: `conf` wins, then Spark's own file, then these."""
        told = spark_defaults(self.environment) | dict(conf)
        python = told.get(_PYTHON) or self.environment.get("PYSPARK_PYTHON") or self._usual_python
        all_options = launch.java_options(home, options)
        return {
            "spark.app.name": launch.APP_NAME,
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.catalogImplementation": "in-memory",
            "spark.sql.warehouse.dir": (home / "spark" / "warehouse").as_uri(),
            **self._address(),
            **self._workers(scratch, python),
            **self._handed_on(),
            **launch.session_conf(told),
            **self._packed(told),
            _PYTHON: python,
            _JAVA_OPTIONS: " ".join([*all_options, told.get(_JAVA_OPTIONS, "")]).rstrip(),
            "spark.master": self.master,
        }

    def driver_environment(self, java: Path, scratch: Path, python: str) -> dict[str, str]:
        """Give the environment of the driver's JVM."""
        own = launch.child_environment(java, self.environment)
        if not self.is_on_this_machine:
            del own["SPARK_LOCAL_IP"]
        if "SPARK_LOCAL_IP" in self.environment:
            own["SPARK_LOCAL_IP"] = self.environment["SPARK_LOCAL_IP"]
        if is_local_cluster(self.master):
            own["SPARK_HOME"] = str(launch.home_of_workers(scratch))
        return {"SPARK_LOCAL_DIRS": str(scratch)} | own | {"PYSPARK_PYTHON": python}

    @property
    def _usual_python(self) -> str:
        if self.is_on_this_machine:
            return sys.executable
        return f"python{sys.version_info.major}.{sys.version_info.minor}"

    def _address(self) -> dict[str, str]:
        if not self.is_on_this_machine:
            return {}
        return {
            "spark.driver.host": launch.LOOPBACK,
            "spark.driver.bindAddress": launch.LOOPBACK,
        }

    def _workers(self, scratch: Path, python: str) -> dict[str, str]:
        """Let workers start from what is imported already, where that can be found for sure."""
        is_found = self.packed is not None or python == sys.executable
        daemon = {"spark.python.daemon.module": launch.DAEMON_MODULE} if is_found else {}
        # Elsewhere sockets of the file system would need a folder that every executor can write.
        # The same goes for options that only this Java is sure to know.
        if is_local_cluster(self.master):
            quick = {"spark.executor.extraJavaOptions": " ".join(launch.JVM_OPTIONS)}
            return {**daemon, **launch.socket_conf(scratch), **quick}
        return daemon

    def _handed_on(self) -> dict[str, str]:
        given = {name: self.environment.get(name, "") for name in HANDED_ON}
        return {
            f"{_EXECUTOR_ENVIRONMENT}{name}": value
            for name, value in given.items()
            if value and "@" not in urlsplit(value).netloc  # a user or password
        }

    def _packed(self, told: Mapping[str, str]) -> dict[str, str]:
        if self.packed is None:
            return {}
        archive = f"{self.packed.as_uri()}#{PACKED_FOLDER}"
        # Executors unpack into the folder in which they work; workers of a Connect server's
        # client work one below it.
        path = f"{_EXECUTOR_ENVIRONMENT}PYTHONPATH"
        places = (PACKED_FOLDER, f"../{PACKED_FOLDER}", told.get(path, ""))
        return {
            _ARCHIVES: ",".join(filter(None, (told.get(_ARCHIVES, ""), archive))),
            path: ":".join(filter(None, places)),
        }


def spark_defaults(environment: Mapping[str, str]) -> dict[str, str]:
    """Read `spark-defaults.conf` where Spark looks for it; nothing where there is none."""
    folder = environment.get("SPARK_CONF_DIR")
    file = (Path(folder) if folder else launch.spark_home() / "conf") / "spark-defaults.conf"
    if not file.is_file():
        return {}
    found: dict[str, str] = {}
    text = re.sub(r"\\\r?\n\s*", "", file.read_text(encoding="utf-8"))
    for line in map(str.strip, text.splitlines()):
        told = re.fullmatch(r"([^#!\s=:][^\s=:]*)\s*[=:\s]\s*(.*)", line)
        if told is not None:
            found[told.group(1)] = re.sub(r"\\(.)", r"\1", told.group(2))
    return found
