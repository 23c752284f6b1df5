"""One run of a program that reads lines, prints lines and talks on its standard error.

Reading, writing and listening each have a thread, so neither side ever waits for the other for
ever. What the lines mean is not known here.
"""

import io
import logging
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import IO, Self, cast

import psutil

KEPT_BYTES = 64 * 2**10
_CHUNK = 64 * 2**10
_MAX_LINE = 2**20
_LONG_LINE = bytes(_MAX_LINE)
_LEFT_OUT = f"(a line of more than {_MAX_LINE:,} bytes is left out)\n"
_LOOK_SECONDS = 5.0
_WORKING = 0.01  # of a core: what waits for something takes less
log = logging.getLogger("batch_pipeline.targets")


class HungError(Exception):
    """The program did nothing for as long as it may."""


class TargetRun:
    """A program in a process group of its own, which is gone when the block ends.

    `hide` takes secrets out of what it says.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        timeout: timedelta,
        hide: Callable[[str], str] = str,
        grace: timedelta = timedelta(seconds=10),
    ) -> None:
        self._timeout = timeout.total_seconds()
        self._grace = grace.total_seconds()
        self._hide = hide
        self._events: queue.SimpleQueue[bytes | BaseException | None] = queue.SimpleQueue()
        self._kept = bytearray()
        self._moved_at = time.monotonic()
        self._waits_for_lines = False  # what it does not get from us, it cannot read
        self._cpu_seconds = 0.0
        self._program = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        self._writers: list[threading.Thread] = []
        self._readers = [self._thread(self._read_printed), self._thread(self._read_said)]
        self._thread(self._wait)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def exit_code(self) -> int | None:
        """How it ended, negative for a signal; None while it runs."""
        return self._program.poll()

    @property
    def said(self) -> str:
        """The end of what it said on its standard error, at most 64 KiB."""
        return bytes(self._kept).decode("utf-8", "replace")

    def talk(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        """Send lines while giving each line that it prints; ends when it has ended.

        The time that `lines` takes is not its own.

        Raises:
            HungError: it neither read nor said nor computed anything for as long as it may.
            Exception: what `lines` raised; the rest was not sent.
        """
        self._writers.append(self._thread(self._write, lines))
        while True:
            try:
                event = self._events.get(timeout=self._patience())
            except queue.Empty:
                self._check_alive()
                continue
            if event is None:
                break
            if isinstance(event, BaseException):
                raise event
            yield event
        for reader in self._readers:
            reader.join(self._grace)  # a child of its own may hold the pipes open
        while not self._events.empty():
            left = self._events.get()
            if isinstance(left, bytes):
                yield left

    def stop(self) -> None:
        """End it and all that it started: first asking, after a grace by force."""
        if self._program.poll() is None:
            self._signal(signal.SIGTERM)
            try:
                self._program.wait(self._grace)
            except subprocess.TimeoutExpired:
                self._signal(signal.SIGKILL)
                self._program.wait()
        if any(reader.is_alive() for reader in self._readers):
            self._signal(signal.SIGKILL)
        for thread in (*self._readers, *self._writers):
            thread.join(self._grace)
        with suppress(OSError):
            cast("IO[bytes]", self._program.stdin).close()

    def _patience(self) -> float:
        left = self._moved_at + self._timeout - time.monotonic()
        return max(0.01, min(left, self._timeout / 10, _LOOK_SECONDS))

    def _check_alive(self) -> None:
        now, before = time.monotonic(), self._cpu_seconds
        self._cpu_seconds = self._worked()
        is_busy = self._cpu_seconds - before > _WORKING * min(self._timeout / 10, _LOOK_SECONDS)
        if is_busy or self._waits_for_lines:
            self._moved_at = now
        elif now - self._moved_at >= self._timeout:
            raise HungError

    def _worked(self) -> float:
        total = 0.0
        with suppress(psutil.Error):
            first = psutil.Process(self._program.pid)
            for one in (first, *first.children(recursive=True)):
                with suppress(psutil.Error):
                    times = one.cpu_times()
                    total += times.user + times.system
        return total

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._program.pid, number)

    def _thread(self, work: Callable[..., None], *given: object) -> threading.Thread:
        thread = threading.Thread(target=work, args=given, daemon=True)
        thread.start()
        return thread

    def _write(self, lines: Iterable[bytes]) -> None:
        pipe = cast("IO[bytes]", self._program.stdin)
        try:
            for line in self._awaited(lines):
                for start in range(0, len(line), _CHUNK):
                    chunk = memoryview(line)[start : start + _CHUNK]
                    while chunk:
                        chunk = chunk[os.write(pipe.fileno(), chunk) :]
                        self._moved_at = time.monotonic()
        except (BrokenPipeError, ConnectionResetError):
            pass  # it reads no more: how it ends tells the rest
        except BaseException as error:  # noqa: BLE001 - raised again by whom we write for
            # The pipe stays open, so that it does not take what it got for all there is.
            self._events.put(error)
            return
        with suppress(OSError):
            pipe.close()

    def _awaited(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        self._waits_for_lines = True
        try:
            for line in lines:
                self._moved_at = time.monotonic()
                self._waits_for_lines = False
                yield line
                self._waits_for_lines = True
            self._moved_at = time.monotonic()
        finally:
            self._waits_for_lines = False

    def _read_printed(self) -> None:
        with io.BufferedReader(cast("io.RawIOBase", self._program.stdout)) as pipe:
            while line := pipe.readline(_MAX_LINE):
                self._moved_at = time.monotonic()
                self._events.put(line)

    def _read_said(self) -> None:
        with io.BufferedReader(cast("io.RawIOBase", self._program.stderr)) as pipe:
            line = b""
            while piece := pipe.readline(_CHUNK):
                self._moved_at = time.monotonic()
                # Whole lines: a cut in the middle of a secret would show the rest of it.
                line = line + piece if len(line) < _MAX_LINE else _LONG_LINE
                if piece.endswith(b"\n"):
                    self._keep(line)
                    line = b""
            self._keep(line)

    def _keep(self, line: bytes) -> None:
        said = _LEFT_OUT if len(line) >= _MAX_LINE else self._hide(line.decode("utf-8", "replace"))
        self._kept += said.encode()
        del self._kept[:-KEPT_BYTES]
        if said and log.isEnabledFor(logging.INFO):
            log.info("%s", said.rstrip("\n"))

    def _wait(self) -> None:
        self._program.wait()
        self._events.put(None)
