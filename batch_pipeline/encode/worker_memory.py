"""Memory of a worker process: its peak, and what it keeps; Spark sets the limit."""

import ctypes
import resource
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
_LARGEST_BLOCK = 32 * 2**20
_UNIT = 1 if sys.platform == "darwin" else 1024  # what the systems count in


def peak_bytes() -> int:
    """Return the peak resident memory of this process since it started."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _UNIT


def keep_freed_memory() -> None:
    """Keep up to 64 MiB of freed memory instead of returning it to the system.

    Blocks of some MiB are allocated and freed all the time, and the system clears each page that it
    hands out. Does nothing where the C library has no `mallopt`.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGEST_BLOCK)
        mallopt(_TRIM_THRESHOLD, 2 * _LARGEST_BLOCK)
