"""What the processes of a `dev` hold, part by part: memory, open files, threads. Judges nothing."""

from contextlib import suppress
from dataclasses import dataclass

import psutil

from batch_pipeline_tests.acceptance.sandbox import Sandbox

# The first whose words are all in the command line; a guardian repeats the words of its ward.
_PARTS = (
    ("guardians", ("guardian.py",)),
    ("daemon", ("dagster._daemon",)),
    ("webserver", ("dagster_webserver",)),
    ("code server", ("code-server", "start")),
    ("definitions", ("api", "grpc")),
    ("runs", ("spawn_main", "--multiprocessing-fork")),
    ("definitions", ("multiprocessing.resource_tracker",)),
    ("Spark", ("SparkConnectServer",)),
    ("Python workers", ("worker_daemon",)),
    ("dev", ("batch_pipeline", "dev", "--port")),
    ("runs", ("watch_orphans.py",)),  # with `tail`, how Dagster keeps what a run prints
    ("runs", ("tail", "compute_logs")),
    ("class data archive", ("class_data_builder",)),
    ("class data archive", ("org.apache.spark.deploy.SparkSubmit", "pyspark-shell")),
)
DATABASE = "PostgreSQL"
_OTHER = "other"
MEBIBYTE = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What one process, or all of a part, hold; memory that processes share counts in parts."""

    processes: int = 0
    memory: float = 0.0  # MiB
    files: int = 0
    threads: int = 0

    def plus(self, other: "Held") -> "Held":
        """Add up."""
        return Held(
            processes=self.processes + other.processes,
            memory=self.memory + other.memory,
            files=self.files + other.files,
            threads=self.threads + other.threads,
        )


Who = tuple[str, int, float]  # part, number and start of a process


def held_by_process(sandbox: Sandbox) -> dict[Who, Held]:
    """Look at every process of a place."""
    found: dict[Who, Held] = {}
    for process in sandbox.processes():
        with suppress(psutil.Error, OSError):
            held = Held(
                processes=1,
                memory=process.memory_full_info().pss / MEBIBYTE,
                files=process.num_fds(),
                threads=process.num_threads(),
            )
            found[part_of(process), process.pid, process.create_time()] = held
    return found


def part_of(process: psutil.Process) -> str:
    """Name the part that a process is of."""
    if process.name().startswith("postgres"):
        return DATABASE
    line = " ".join(process.cmdline())
    for name, words in _PARTS:
        if all(word in line for word in words):
            return name
    return _OTHER


def by_part(processes: dict[Who, Held]) -> dict[str, Held]:
    """Add up what the processes of each part hold."""
    parts: dict[str, Held] = {}
    for (part, _, _), held in processes.items():
        parts[part] = parts.get(part, Held()).plus(held)
    return parts
