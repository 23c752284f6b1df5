"""What a worker process has needed of memory, and what it keeps; a bound is for Spark to set."""

import ctypes
import resource
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
_LARGEST_BLOCK = 32 * 2**20
_UNIT = 1 if sys.platform == "darwin" else 1024  # what the systems count in


def peak_bytes() -> int:
    """Give the most memory that this process has held at once since it started."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _UNIT


def keep_freed_memory() -> None:
    """Keep up to 64 MiB that were freed instead of giving them back to the system.

    Blocks of some MiB come and go all the time, and what comes from the system is cleared first,
    page by page. Does nothing where the C library cannot be told.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGEST_BLOCK)
        mallopt(_TRIM_THRESHOLD, 2 * _LARGEST_BLOCK)
