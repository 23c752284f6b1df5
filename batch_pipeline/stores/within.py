"""Opens files of disks, if they are where they may be once all links on the way are followed.

What was opened is asked where it lies, so that a link that is changed meanwhile leads nowhere else.
A second name of a file (a hard link) cannot be told from the first one.
"""

import os
from io import BufferedReader
from pathlib import Path
from typing import Any

from batch_pipeline.domain.location import to_path
from batch_pipeline.domain.roots import Roots

# A pipe or a terminal that takes the place of a file makes nobody wait.
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


class OutsideError(PermissionError):
    """A file lies outside of the places where files may lie; nothing of it was read."""


def open_within(location: str, roots: Roots) -> "BufferedReader[Any]":
    """Open a file of a disk for reading.

    Raises:
        InvalidValueError: the location names no file of a disk.
        OutsideError: it lies, or links lead, outside of the roots.
        OSError: it is not there, or cannot be opened.
    """
    path = to_path(location)
    if roots.refuse(location):
        raise OutsideError(path)
    descriptor = os.open(path, _FLAGS)
    try:
        _check(descriptor, path, location, roots)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def leads_out(path: str, roots: Roots) -> bool:
    """Tell whether a link below one of the roots leads to a place below none of them."""
    return not _lies_below(os.path.realpath(path), roots)


def _check(descriptor: int, path: str, location: str, roots: Roots) -> None:
    real = _real_path(descriptor, path)
    # What is below none of the roots was registered where it lies, when no link was on the way.
    if _lies_below(real, roots) if roots.hold(location) else real == path:
        return
    if os.fstat(descriptor).st_nlink == 0:  # deleted within this moment
        raise FileNotFoundError(path)
    raise OutsideError(path)


def _lies_below(real: str, roots: Roots) -> bool:
    folders = [to_path(one) for one in roots.uris if one.startswith("file:")]
    # No real path has a link in it: where it begins with the folder as it is written, that is real.
    return any(_is_below(real, one) for one in folders) or any(
        _is_below(real, os.path.realpath(one)) for one in folders
    )


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(f"{folder.rstrip('/')}/")


def _real_path(descriptor: int, path: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115 - of each of many files
    except OSError:  # a system without it: the name is looked up again, and has to be this file
        real = os.path.realpath(path)
        if not os.path.samestat(Path(real).lstat(), os.fstat(descriptor)):
            raise OutsideError(path) from None
        return real
