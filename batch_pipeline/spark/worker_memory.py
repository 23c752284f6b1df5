"""How much memory a worker process has needed. Looks only; a bound is for Spark to set."""

import resource
import sys

_UNIT = 1 if sys.platform == "darwin" else 1024  # what the systems count in


def peak_bytes() -> int:
    """Give the most memory that this process has held at once since it started."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _UNIT
