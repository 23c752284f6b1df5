"""Third-party Singer programs, installed from PyPI into separate environments."""

import fcntl
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

REQUIREMENTS = (
    "meltanolabs-target-csv==0.5.0",
    "meltanolabs-target-postgres==0.8.1",
    "singer-sdk[s3,parquet]==0.54.9",
)


def installed(cache: Path, requirements: Sequence[str] = REQUIREMENTS) -> Path:
    """Return the folder of an environment's commands, which is cached between sessions.

    Concurrent processes wait for the one that creates it.
    """

    def make(folder: Path) -> None:
        _run("uv", "venv", "--quiet", "--python", sys.executable, str(folder))
        into = str(folder / "bin" / "python")
        _run("uv", "pip", "install", "--quiet", "--python", into, *requirements)

    return made_once(cache, " ".join(requirements), make) / "bin"


def made_once(cache: Path, what: str, make: Callable[[Path], None]) -> Path:
    """Return a folder that `make` fills once for this Python version; it is cached."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    name = hashlib.sha256(f"{python} {what}".encode()).hexdigest()[:12]
    folder = cache / name
    with (cache / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            make(folder)
            (folder / "complete").touch()
    return folder


def _run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=600)
