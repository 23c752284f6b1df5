"""An environment for the peers, separate from the project's, and runs of them."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import psutil

from batch_pipeline.model.encoding import Format
from batch_pipeline.spark.java import find_java_home
from batch_pipeline_tests.acceptance.real_targets import installed
from batch_pipeline_tests.benchmarks import encode_peers
from batch_pipeline_tests.benchmarks.measures import Cost, PeakMemory, tree
from batch_pipeline_tests.benchmarks.wide_records import column_kinds
from batch_pipeline_tests.benchmarks.workload import Conversion

# A fixed version of the SDK; the newest versions of the others.
_REQUIREMENTS = ("singer-sdk==0.54.9", "duckdb", "polars")
_VERSIONS = """
from importlib.metadata import version
print(", ".join(f"{name} {version(name)}" for name in ("singer-sdk", "duckdb", "polars")))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """Runs peers with a Python that has them installed."""

    python: Path

    @classmethod
    def installed(cls, cache: Path) -> "Peers":
        """Return the peers in an environment that is created once, from PyPI."""
        cache.mkdir(parents=True, exist_ok=True)
        return cls(python=installed(cache, _REQUIREMENTS) / "python")

    def versions(self) -> str:
        """Return the versions of the installed packages."""
        output, _ = self._output(["-c", _VERSIONS], "")
        return f"{output.strip()}, pyspark {version('pyspark')}"

    def run(self, peer: str, conversion: Conversion, paths: Sequence[Path], folder: Path) -> Cost:
        """Convert files into a folder by a peer."""
        job = {
            "peer": peer,
            "source": conversion.source.value,
            "to_json": conversion.encoding.format is Format.JSONL,
            "paths": [str(path) for path in paths],
            "folder": str(folder),
            "columns": column_kinds(),
        }
        arguments = ["-W", "ignore", encode_peers.__file__]
        is_spark = peer == "pyspark"  # runs in the project's environment with its own Java
        output, peak_bytes = self._output(arguments, json.dumps(job), is_spark=is_spark)
        return Cost(**json.loads(output), peak_bytes=peak_bytes)

    def _output(
        self, arguments: Sequence[str], text: str, *, is_spark: bool = False
    ) -> tuple[str, int]:
        """Return what a program prints, and the peak memory of all its processes."""
        environment = foreign_environment() | {"POLARS_MAX_THREADS": str(encode_peers.THREADS)}
        if is_spark:
            environment["JAVA_HOME"] = str(find_java_home(Path(tempfile.gettempdir()), os.environ))
        with subprocess.Popen(
            [sys.executable if is_spark else str(self.python), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        ) as process:
            root = psutil.Process(process.pid)
            memory = PeakMemory(lambda: tree(root))
            output, errors = process.communicate(text)
            peak_bytes = memory.stop()
        assert process.returncode == 0, errors[-2_000:]
        return output, peak_bytes


def foreign_environment() -> dict[str, str]:
    """Return this environment without variables that point Python to the project."""
    project_variables = ("VIRTUAL_ENV", "PYTHONPATH", "UV_PROJECT_ENVIRONMENT")
    return {name: text for name, text in os.environ.items() if name not in project_variables}
