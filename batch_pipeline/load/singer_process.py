"""The process of a Singer target, the STATE that it acknowledges, and its configuration.

`TargetRun` runs the process in a process group of its own, sends it lines and yields the lines
that it prints. `read_state` matches a printed line with the STATE messages that were sent.
`TargetConfig` resolves variables of the configuration and redacts their values in all output.
"""

import io
import json
import logging
import os
import queue
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Self, cast
from urllib.parse import quote, quote_plus, unquote, urlsplit

import psutil

from batch_pipeline.model.errors import SettingError
from batch_pipeline.storage.local import PrivateFolder

STDERR_TAIL_BYTES = 64 * 2**10
_CHUNK_BYTES = 64 * 2**10
_MAX_LINE_BYTES = 2**20
_LONG_LINE_MARKER = bytes(_MAX_LINE_BYTES)
_OMITTED_LINE = f"(a line of more than {_MAX_LINE_BYTES:,} bytes is omitted)\n"
_POLL_SECONDS = 5.0
_BUSY_CPU_SHARE = 0.01  # of a core; a waiting process uses less
log = logging.getLogger("batch_pipeline.targets")


class MisbehavedError(Exception):
    """A target that hangs, or that printed a `line` other than a sent STATE."""

    def __init__(self, problem: str, line: bytes | None = None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.line = line


class TargetRun:
    """A running target in a process group of its own, which is stopped when the block ends.

    `redact` removes secrets from its standard error.

    Raises:
        OSError: the program cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        timeout: timedelta,
        redact: Callable[[str], str] = str,
        grace: timedelta = timedelta(seconds=10),
    ) -> None:
        self._timeout = timeout.total_seconds()
        self._grace = grace.total_seconds()
        self._redact = redact
        self._events: queue.SimpleQueue[bytes | BaseException | None] = queue.SimpleQueue()
        self._stderr_tail = bytearray()
        self._active_at = time.monotonic()
        self._waits_for_lines = False  # while there is nothing to send, the target may be idle
        self._cpu_seconds = 0.0
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        self._writers: list[threading.Thread] = []
        self._readers = [
            self._start_thread(self._read_stdout),
            self._start_thread(self._read_stderr),
        ]
        self._start_thread(self._wait)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    @property
    def exit_code(self) -> int | None:
        """Exit code of the process, negative for a signal; None while it runs."""
        return self._process.poll()

    @property
    def stderr_tail(self) -> str:
        """Redacted end of the standard error, at most 64 KiB."""
        return bytes(self._stderr_tail).decode("utf-8", "replace")

    def exchange(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        """Send lines and yield each line that the target prints, until it exits.

        The time that `lines` takes does not count towards the timeout.

        Raises:
            MisbehavedError: the target neither read, printed nor computed anything within the
                timeout.
            Exception: an error that `lines` raised; the remaining lines were not sent.
        """
        self._writers.append(self._start_thread(self._write, lines))
        while True:
            try:
                event = self._events.get(timeout=self._poll_seconds())
            except queue.Empty:
                self._check_alive()
                continue
            if event is None:
                break
            if isinstance(event, BaseException):
                raise event
            yield event
        for reader in self._readers:
            reader.join(self._grace)  # a child of the target may hold the pipes open
        while not self._events.empty():
            remaining = self._events.get()
            if isinstance(remaining, bytes):
                yield remaining

    def stop(self) -> None:
        """Terminate the process group; kill it after the grace period."""
        if self._process.poll() is None:
            self._signal_group(signal.SIGTERM)
            try:
                self._process.wait(self._grace)
            except subprocess.TimeoutExpired:
                self._signal_group(signal.SIGKILL)
                self._process.wait()
        if any(reader.is_alive() for reader in self._readers):
            self._signal_group(signal.SIGKILL)
        for thread in (*self._readers, *self._writers):
            thread.join(self._grace)
        with suppress(OSError):
            cast("IO[bytes]", self._process.stdin).close()

    def _poll_seconds(self) -> float:
        remaining = self._active_at + self._timeout - time.monotonic()
        return max(0.01, min(remaining, self._timeout / 10, _POLL_SECONDS))

    def _check_alive(self) -> None:
        now, before = time.monotonic(), self._cpu_seconds
        self._cpu_seconds = self._used_cpu_seconds()
        period = min(self._timeout / 10, _POLL_SECONDS)
        is_busy = self._cpu_seconds - before > _BUSY_CPU_SHARE * period
        if is_busy or self._waits_for_lines:
            self._active_at = now
        elif now - self._active_at >= self._timeout:
            raise MisbehavedError("was idle for longer than `timeout`")

    def _used_cpu_seconds(self) -> float:
        total = 0.0
        with suppress(psutil.Error):
            first = psutil.Process(self._process.pid)
            for process in (first, *first.children(recursive=True)):
                with suppress(psutil.Error):
                    times = process.cpu_times()
                    total += times.user + times.system
        return total

    def _signal_group(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _start_thread(self, work: Callable[..., None], *arguments: object) -> threading.Thread:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        thread.start()
        return thread

    def _write(self, lines: Iterable[bytes]) -> None:
        pipe = cast("IO[bytes]", self._process.stdin)
        try:
            for line in self._track_waiting(lines):
                for start in range(0, len(line), _CHUNK_BYTES):
                    chunk = memoryview(line)[start : start + _CHUNK_BYTES]
                    while chunk:
                        chunk = chunk[os.write(pipe.fileno(), chunk) :]
                        self._active_at = time.monotonic()
        except (BrokenPipeError, ConnectionResetError):
            pass  # the target has closed its input; the exit code shows whether that is an error
        except BaseException as error:  # noqa: BLE001 - raised again by `exchange`
            # The pipe stays open, so that the target does not mistake partial input for all of it.
            self._events.put(error)
            return
        with suppress(OSError):
            pipe.close()

    def _track_waiting(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        self._waits_for_lines = True
        try:
            for line in lines:
                self._active_at = time.monotonic()
                self._waits_for_lines = False
                yield line
                self._waits_for_lines = True
            self._active_at = time.monotonic()
        finally:
            self._waits_for_lines = False

    def _read_stdout(self) -> None:
        with io.BufferedReader(cast("io.RawIOBase", self._process.stdout)) as pipe:
            while line := pipe.readline(_MAX_LINE_BYTES):
                self._active_at = time.monotonic()
                self._events.put(line)

    def _read_stderr(self) -> None:
        with io.BufferedReader(cast("io.RawIOBase", self._process.stderr)) as pipe:
            line = b""
            while piece := pipe.readline(_CHUNK_BYTES):
                self._active_at = time.monotonic()
                # Redact whole lines: a secret that is split would not be recognized.
                line = line + piece if len(line) < _MAX_LINE_BYTES else _LONG_LINE_MARKER
                if piece.endswith(b"\n"):
                    self._append_stderr(line)
                    line = b""
            self._append_stderr(line)

    def _append_stderr(self, line: bytes) -> None:
        is_long = len(line) >= _MAX_LINE_BYTES
        text = _OMITTED_LINE if is_long else self._redact(line.decode("utf-8", "replace"))
        self._stderr_tail += text.encode()
        del self._stderr_tail[:-STDERR_TAIL_BYTES]
        if text and log.isEnabledFor(logging.INFO):
            log.info("%s", text.rstrip("\n"))

    def _wait(self) -> None:
        self._process.wait()
        self._events.put(None)


def read_state(line: bytes, sent: Sequence[Mapping[str, Any]]) -> tuple[int, Mapping[str, Any]]:
    """Return the index of the last sent STATE that a printed line contains, and its value.

    The printed STATE may contain bookmarks of other streams, and the line may be the whole message.

    Raises:
        MisbehavedError: the line is not a JSON object, or contains no STATE that was sent.
    """
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise MisbehavedError("is not JSON", line) from None
    if isinstance(value, dict) and value.get("type") == "STATE":
        value = value.get("value")
    if not isinstance(value, dict):
        raise MisbehavedError("is not a JSON object", line)
    for number in range(len(sent) - 1, -1, -1):
        if _contains(value, sent[number]):
            return number, value
    raise MisbehavedError("holds no STATE that was sent", line)


def _contains(value: Any, sent: Mapping[str, Any]) -> bool:
    bookmarks = value.get("bookmarks")
    return isinstance(bookmarks, dict) and all(
        name in bookmarks and bookmarks[name] == bookmark
        for name, bookmark in sent["bookmarks"].items()
    )


VARIABLE = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")


@dataclass(frozen=True)
class TargetConfig:
    """A target's configuration with resolved variables; `secrets` are the variables' values."""

    values: Mapping[str, Any] = field(repr=False)
    secrets: Mapping[str, str] = field(repr=False)

    @classmethod
    def resolve(
        cls, config: Mapping[str, Any], environment: Mapping[str, str], where: str
    ) -> "TargetConfig":
        """Replace values that are `$NAME` with environment variables.

        `where` names the configuration in the error.

        Raises:
            SettingError: a variable is not set.
        """
        secrets: dict[str, str] = {}

        def fill(value: Any) -> Any:
            if isinstance(value, Mapping):
                return {name: fill(item) for name, item in value.items()}
            if isinstance(value, list | tuple):
                return [fill(item) for item in value]
            match = VARIABLE.fullmatch(value) if isinstance(value, str) else None
            if match is None:
                return value
            secret = environment.get(match[1])
            if secret is None:
                step = "Set it, then run `batch-pipeline load` again."
                raise SettingError(match[1], where, "this variable is not set", step)
            secrets[match[1]] = secret
            return secret

        return cls({name: fill(value) for name, value in config.items()}, secrets)

    def redact(self, text: str) -> str:
        """Replace all forms of the secrets in a text with the names of their variables."""
        for secret, name in self._forms:
            text = text.replace(secret, name)
        return text

    def redact_json(self, value: Any) -> Any:
        """Redact all texts in a JSON value."""
        if isinstance(value, str):
            return self.redact(value)
        if isinstance(value, Mapping):
            return {self.redact(name): self.redact_json(item) for name, item in value.items()}
        if isinstance(value, list):
            return [self.redact_json(item) for item in value]
        return value

    @contextmanager
    def write_file(self) -> Iterator[Path]:
        """Write the configuration to a file that only this user can read, while a block runs.

        If the process is killed, the next process removes the file.
        """
        with PrivateFolder("target") as folder:
            path = folder.path / "config.json"
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                json.dump(self.values, file)
            yield path

    @cached_property
    def _forms(self) -> list[tuple[str, str]]:
        """All forms of the secrets with the `$NAME` that replaces each, longest first."""
        forms = {
            form: f"${name}"
            for name, secret in self.secrets.items()
            for piece in (secret, *_secret_parts(secret))
            for form in _escaped_forms(piece)
            if len(form) >= _MIN_SECRET_LENGTH
        }
        return sorted(forms.items(), key=lambda form: -len(form[0]))


_MIN_SECRET_LENGTH = 4  # shorter secrets occur in ordinary text
_MIN_PART_LENGTH = 8  # of a multi-line secret or a JSON document


def _secret_parts(secret: str) -> Iterator[str]:
    """Yield parts of a secret that a program may print: the password of a URL, single lines."""
    try:
        password = urlsplit(secret).password
    except ValueError:
        password = None
    if password:
        yield from {password, unquote(password)}
    lines = secret.splitlines()
    if len(lines) > 1:
        yield from (line for line in map(str.strip, lines) if len(line) >= _MIN_PART_LENGTH)
    if secret.lstrip().startswith("{"):
        yield from _document_parts(secret)


def _document_parts(secret: str) -> Iterator[str]:
    """Yield the texts, and their lines, in a secret that is a JSON document, such as a key file."""
    with suppress(ValueError, RecursionError):
        for text in _json_texts(json.loads(secret)):
            pieces = (text, *text.splitlines())
            yield from (piece for piece in pieces if len(piece) >= _MIN_PART_LENGTH)


def _json_texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _json_texts(item)


def _escaped_forms(secret: str) -> set[str]:
    """Return a text in plain form and as escaped in JSON, in Python and in a URL."""
    literals = json.dumps(secret), json.dumps(secret, ensure_ascii=False), repr(secret)
    quoted = {quote(secret, safe=""), quote(secret), quote_plus(secret)}
    return {secret, *quoted, *(literal[1:-1] for literal in literals)}
