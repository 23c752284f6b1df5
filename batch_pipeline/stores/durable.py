"""Making names of files last: a file's bytes are forced to the disk by who writes them."""

import os
from pathlib import Path


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
