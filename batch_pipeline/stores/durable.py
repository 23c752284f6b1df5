"""Making names of files last: a file's bytes are forced to the disk by who writes them."""

import errno
import os
from pathlib import Path

# What a file system says that has no second names for files, or none for this one.
NO_LINKS = frozenset({errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK})


def sync_folder(folder: Path) -> None:
    """Force the names in a folder of a disk, and that others are gone from it, to the disk.

    Raises:
        OSError: the system refuses.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
