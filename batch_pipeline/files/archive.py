"""Moving a file to another folder, also of another file system, so that a crash loses nothing.

What is moved, and why, others decide. Nothing is ever overwritten, and a file leaves its place only
when all of it is in the other one.
"""

import errno
import filecmp
import os
import shutil
from pathlib import Path
from uuid import uuid4

from batch_pipeline.domain.failpoint import failpoint
from batch_pipeline.stores.durable import NO_LINKS, sync_folder

_CHUNK = 2**20


def move(source: Path, target: Path) -> None:
    """Move a file; a copy that an interrupted move has left in its place is taken for it.

    Raises:
        FileNotFoundError: there is no such file.
        OSError: it cannot be moved, or another file has the name; it stays where it is.
    """
    source.stat()
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.parent.samefile(source.parent):
        raise OSError(errno.EINVAL, "that is the folder it lies in")
    if not target.exists():
        _put(source, target)
    _check_same(source, target)
    sync_folder(target.parent)
    failpoint("archive.before_unlink")
    source.unlink()


def _put(source: Path, target: Path) -> None:
    """Give a file a second place: by a link, which overwrites nothing, or by a copy."""
    try:
        target.hardlink_to(source)
    except FileExistsError:
        return  # somebody was faster
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
    else:
        return
    aside = target.with_name(f".{target.name}-{uuid4().hex}.tmp")
    try:
        with source.open("rb") as read, aside.open("xb") as written:
            shutil.copyfileobj(read, written, _CHUNK)
            written.flush()
            os.fsync(written.fileno())
        shutil.copystat(source, aside)
        failpoint("archive.copied")
        if not target.exists():
            aside.rename(target)
    finally:
        aside.unlink(missing_ok=True)


def _check_same(source: Path, target: Path) -> None:
    if target.samefile(source):
        return
    if target.stat().st_size != source.stat().st_size:
        raise OSError(errno.EEXIST, "another file has its name there, of another size")
    if not filecmp.cmp(source, target, shallow=False):
        raise OSError(errno.EEXIST, "another file has its name there")
