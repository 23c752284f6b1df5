"""The home folder, in which the embedded services keep their state between commands.

Only paths, permissions and the lock; other modules own the contents of the folders.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psutil

from batch_pipeline.model.errors import ConfigurationError, RetryableError
from batch_pipeline.storage.filesystem import raise_as, reason_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """Paths below the home folder; nothing exists before `ensure`."""

    path: Path

    @property
    def postgres(self) -> Path:
        """Data folder of the embedded PostgreSQL."""
        return self.path / "postgres"

    @property
    def logs(self) -> Path:
        """Logs of the services."""
        return self.path / "logs"

    @property
    def dagster(self) -> Path:
        """Dagster's instance folder."""
        return self.path / "dagster"

    @property
    def lock_file(self) -> Path:
        """The file that `lock` locks; deleting it while locked lets a second process lock."""
        return self.path / "lock"

    def reported(self, stream: str) -> dict[int, int]:
        """Return the publish counts by job id that `set_reported` last stored for a stream."""
        try:
            counts = json.loads(self._reported_file.read_bytes())[stream]
            return {int(job): int(count) for job, count in counts.items()}
        except (OSError, ValueError, LookupError, AttributeError, TypeError):
            return {}

    def set_reported(self, stream: str, counts: Mapping[int, int]) -> None:
        """Store the publish counts up to which Dagster has all events of a stream.

        The caller holds the lock. If the disk is full, the previous counts stay, and the next
        command compares the events again.
        """
        try:
            stored = json.loads(self._reported_file.read_bytes())
        except (OSError, ValueError):
            stored = {}
        stored[stream] = {str(job): count for job, count in counts.items()}
        temporary = self._reported_file.with_suffix(".tmp")
        with suppress(OSError):
            temporary.write_text(json.dumps(stored), encoding="utf-8")
            temporary.replace(self._reported_file)

    @property
    def _reported_file(self) -> Path:
        return self.path / "reported.json"

    def ensure(self) -> None:
        """Create the folder for this user alone (mode 0700) and keep it out of version control.

        A folder that exists keeps its mode. A repeated call changes nothing.

        Raises:
            ConfigurationError: it cannot be created or written.
        """
        with raise_as(self._unusable):
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            ignore = self.path / ".gitignore"
            if not ignore.exists() or not ignore.stat().st_size:  # empty: the disk was full
                ignore.write_text("*\n", encoding="utf-8")
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise self._unusable("permission denied")

    def holder(self) -> str | None:
        """Return the holder of the lock, as that process described itself, without locking."""
        try:
            line = self.lock_file.read_bytes()[:4096]
        except OSError:
            return None
        with suppress(ValueError, KeyError, TypeError):
            if psutil.pid_exists(int(json.loads(line)["pid"])):
                return _holder(line)
        return None

    @contextmanager
    def lock(self, purpose: str, *, since: datetime | None = None) -> Iterator[None]:
        """Hold the home for one process until the context ends or the process dies.

        `purpose` is the command that users know, for example `batch-pipeline dev`; `since` defaults
        to now. Child processes do not share the lock: executed programs do not inherit the
        descriptor, and a forked process closes its copy at once. The lock is advisory and needs a
        local disk.

        Raises:
            RetryableError: the lock is already held, by this process or another.
            ConfigurationError: the home cannot be created, written or locked.
        """
        self.ensure()
        descriptor = self._locked_descriptor()
        owner, open_in_child = os.getpid(), [descriptor]

        def close_in_child() -> None:
            while open_in_child:
                os.close(open_in_child.pop())

        os.register_at_fork(after_in_child=close_in_child)
        try:
            started = (since or datetime.now(UTC)).astimezone(UTC)
            holder = {"pid": owner, "purpose": purpose, "since": started.isoformat()}
            with raise_as(self._unusable):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, json.dumps(holder).encode() + b"\n", 0)
            yield
        finally:
            if os.getpid() == owner:
                open_in_child.clear()
                os.ftruncate(descriptor, 0)
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # a fork in progress may still hold a copy
                os.close(descriptor)

    def _locked_descriptor(self) -> int:
        """Open and lock the lock file; descriptors from `os.open` are not inherited over exec."""
        with raise_as(self._unusable):
            descriptor = os.open(self.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = _holder(os.pread(descriptor, 4096, 0))
            os.close(descriptor)
            raise RetryableError(
                f"{self.path} is in use by {holder}. Nothing was changed. Wait for it to end or "
                f"stop it, or set BATCH_PIPELINE_HOME to another folder."
            ) from error
        except OSError as error:
            os.close(descriptor)
            raise self._unusable(reason_of(error)) from error
        return descriptor

    def _unusable(self, reason: str) -> ConfigurationError:
        return ConfigurationError(
            f"The home folder {self.path} cannot be used ({reason}). Nothing was started. Make it "
            f"writable for this user, or set BATCH_PIPELINE_HOME to another folder on a local disk."
        )


def _holder(line: bytes) -> str:
    """Describe the holder of the lock, which is unknown between locking and writing."""
    with suppress(ValueError, KeyError, TypeError):
        holder = json.loads(line)
        since = datetime.fromisoformat(holder["since"]).astimezone(UTC)
        return f"`{holder['purpose']}` (process {holder['pid']}, since {since:%Y-%m-%d %H:%M} UTC)"
    return "another process"
