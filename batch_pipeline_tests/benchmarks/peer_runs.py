"""An environment for the peers beside the project's, and runs of them in processes of their own."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from batch_pipeline.domain.encoding import Format
from batch_pipeline_tests.benchmarks import encode_peers
from batch_pipeline_tests.benchmarks.encode_conversion import Conversion
from batch_pipeline_tests.benchmarks.encode_workload import CACHE, Source
from batch_pipeline_tests.benchmarks.process_meter import Spent
from batch_pipeline_tests.benchmarks.wide_records import column_kinds

# The SDK whose batcher is the plain way; the others are as new as they come.
REQUIREMENTS = ("singer-sdk==0.54.9", "duckdb", "polars")


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """Runs peers with a Python that has them; `versions` are of the installed packages."""

    python: Path
    versions: Mapping[str, str]

    def run(self, peer: str, conversion: Conversion, paths: Sequence[Path], folder: Path) -> Spent:
        """Let a peer convert files into a folder."""
        job = {
            "peer": peer,
            "source": conversion.source.value,
            "to_json": conversion.encoding.format is Format.JSONL,
            "paths": [str(path) for path in paths],
            "folder": str(folder),
            "columns": column_kinds(typed=conversion.source is Source.TYPED),
        }
        ended = subprocess.run(
            [str(self.python), "-W", "ignore", encode_peers.__file__],
            input=json.dumps(job),
            check=False,
            capture_output=True,
            text=True,
            env=_environment() | {"POLARS_MAX_THREADS": str(encode_peers.THREADS)},
        )
        if ended.returncode:
            raise RuntimeError(f"{peer}: {conversion.name} failed: {ended.stderr[-2_000:]}")
        return Spent(**json.loads(ended.stdout))


def open_peers(cache: Path = CACHE) -> Peers:
    """Give the environment of the peers; it is made, with uv, if it is not there."""
    folder = cache / f"peers-{sys.version_info.major}.{sys.version_info.minor}"
    versions = folder / "versions.json"
    python = folder / "bin" / "python"
    if not versions.exists():
        sys.stdout.write(f"Installing {', '.join(REQUIREMENTS)} into {folder}\n")
        sys.stdout.flush()
        _uv("venv", "--quiet", "--clear", "--python", sys.executable, str(folder))
        _uv("pip", "install", "--quiet", "--python", str(python), *REQUIREMENTS)
        told = _uv("pip", "list", "--quiet", "--format", "json", "--python", str(python))
        names = {requirement.partition("==")[0] for requirement in REQUIREMENTS}
        found = {one["name"]: one["version"] for one in json.loads(told) if one["name"] in names}
        versions.write_text(json.dumps(found))
    return Peers(python=python, versions=json.loads(versions.read_text()))


def _uv(*arguments: str) -> str:
    command = [shutil.which("uv") or "uv", *arguments]
    return subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env=_environment()
    ).stdout


def _environment() -> dict[str, str]:
    """Give this environment without what would lead Python or uv to the project's packages."""
    strange = ("VIRTUAL_ENV", "PYTHONPATH", "UV_PROJECT_ENVIRONMENT")
    return {name: text for name, text in os.environ.items() if name not in strange}
