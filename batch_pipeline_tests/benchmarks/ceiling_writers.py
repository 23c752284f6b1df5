"""Writers of a meta table in processes of their own: short, long, undone and prepared transactions.

What a writer does is its seed's alone; how long it took and what it committed is what it gives.
"""

import multiprocessing
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import psycopg

INSERT = (
    b"INSERT INTO ops.files (file_location, size_in_bytes) "
    b"SELECT 'file:///landing/orders.csv', 1000 FROM generate_series(1, %s) RETURNING id"
)
ENDINGS = {"commit": 91, "long": 2, "rollback": 5, "two_phase": 2}
_PAUSE_SECONDS = 0.04
_LONG_SECONDS = 2.0
_PREPARED_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Written:
    """What writers did in one round.

    `seconds` holds each transaction's time in the database, without the time it idled open;
    `commits` the last id of each committed transaction, and the monotonic time right after.
    """

    seconds: list[float] = field(default_factory=list)
    commits: list[tuple[int, float]] = field(default_factory=list)

    def add(self, other: "Written") -> None:
        """Take in what another writer did."""
        self.seconds.extend(other.seconds)
        self.commits.extend(other.commits)


class Writer:
    """One client that writes transactions of every kind for as long as it is told to."""

    def __init__(self, connection: psycopg.Connection[Any], seed: int) -> None:
        self.connection, self.seed = connection, seed
        self.random = random.Random(seed)  # noqa: S311 - a repeatable workload
        self.idle_seconds = 0.0
        self.prepared = 0

    def write(self, seconds: float) -> Written:
        """Write one transaction after the other, with pauses between them."""
        written = Written()
        end = time.monotonic() + seconds
        while (began := time.monotonic()) < end:
            self.idle_seconds = 0.0
            last_id = self._transaction()
            ended = time.monotonic()
            written.seconds.append(ended - began - self.idle_seconds)
            if last_id is not None:
                written.commits.append((last_id, ended))
            self._idle(_PAUSE_SECONDS)
        return written

    def _transaction(self) -> int | None:
        (ending,) = self.random.choices(list(ENDINGS), list(ENDINGS.values()))
        self.connection.execute("BEGIN")
        ids = [uid for _ in range(self.random.randint(1, 4)) for uid in self._rows()]
        if ending == "long":
            self._idle(_LONG_SECONDS)
        if ending == "rollback":
            self.connection.execute("ROLLBACK")
            return None
        if ending == "two_phase":
            return max(ids, default=None) if self._prepare() else None
        self.connection.execute("COMMIT")
        return max(ids, default=None)

    def _rows(self) -> list[int]:
        if self.random.random() > 0.1:
            return self._insert()
        self.connection.execute("SAVEPOINT part")
        ids = self._insert()
        undo = self.random.random() < 0.5
        self.connection.execute("ROLLBACK TO part" if undo else "RELEASE part")
        return [] if undo else ids

    def _insert(self) -> list[int]:
        found = self.connection.execute(INSERT, [self.random.randint(1, 10)])
        return [uid for (uid,) in found]

    def _prepare(self) -> bool:
        self.prepared += 1
        name = f"writer_{self.seed}_{self.prepared}"
        self.connection.execute(f"PREPARE TRANSACTION '{name}'".encode())
        self._idle(_PREPARED_SECONDS)
        commit = self.random.random() < 0.8
        end = "COMMIT" if commit else "ROLLBACK"
        self.connection.execute(f"{end} PREPARED '{name}'".encode())
        return commit

    def _idle(self, at_most_seconds: float) -> None:
        began = time.monotonic()
        time.sleep(self.random.uniform(0, at_most_seconds))
        self.idle_seconds += time.monotonic() - began


class Writers:
    """All writers: told to write, and asked what they wrote."""

    def __init__(self, pipes: Sequence["Connection[Any, Any]"]) -> None:
        self.pipes = pipes

    def start(self, seconds: float) -> None:
        """Let all write from now on."""
        for pipe in self.pipes:
            pipe.send(seconds)

    def are_done(self) -> bool:
        """Tell whether all have ended their last transaction."""
        return all(pipe.poll() for pipe in self.pipes)

    def written(self) -> Written:
        """Wait for all and give what they wrote."""
        together = Written()
        for pipe in self.pipes:
            together.add(pipe.recv())
        return together


@contextmanager
def running_writers(url: str, count: int) -> Iterator[Writers]:
    """Start writers with a process and a connection each; they end with the block."""
    context = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        pipes = []
        for seed in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, url, seed), daemon=True)
            process.start()
            theirs.close()
            stack.callback(process.join)
            stack.callback(ours.close)
            pipes.append(ours)
        for pipe in pipes:
            pipe.recv()
        yield Writers(pipes)


def _serve(pipe: "Connection[Any, Any]", url: str, seed: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        writer = Writer(connection, seed)
        pipe.send("ready")
        try:
            while True:
                pipe.send(writer.write(pipe.recv()))
        except EOFError:
            return  # the benchmark is over
