"""The memory of a process and of everything below it, sampled while it works."""

import os
import threading
from contextlib import suppress

import psutil

SAMPLE_SECONDS = 0.25


class TreeMemory:
    """Watches a process and those below it until it is told to stop.

    Pages that several processes share count once. Short peaks between two samples are seen where
    they are those of a single process, of which the system keeps the highest.
    """

    def __init__(self, *, below_only: bool = False) -> None:
        self._own = psutil.Process()
        self._below_only = below_only
        self._peak_bytes = 0
        self._before = _highest_bytes(self._own.pid)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def peak_bytes(self) -> int:
        """Stop watching and tell."""
        self._ended.set()
        self._thread.join()
        return self._peak_bytes

    def _watch(self) -> None:
        is_over = False
        while not is_over:
            is_over = self._ended.wait(SAMPLE_SECONDS)
            together = 0
            for process in self._processes():
                with suppress(psutil.Error, OSError):
                    together += int(process.memory_full_info().pss)
                    self._peak_bytes = max(self._peak_bytes, self._highest(process.pid))
            self._peak_bytes = max(self._peak_bytes, together)

    def _processes(self) -> list[psutil.Process]:
        below = self._own.children(recursive=True)
        return below if self._below_only else [self._own, *below]

    def _highest(self, pid: int) -> int:
        highest = _highest_bytes(pid)
        # What this process had at its highest before is not what it needed now.
        return 0 if pid == os.getpid() and highest == self._before else highest


def _highest_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/status", encoding="utf-8") as status:  # noqa: PTH123 - read often
        lines = [line for line in status if line.startswith("VmHWM:")]
    return int(lines[0].split()[1]) * 1024 if lines else 0
