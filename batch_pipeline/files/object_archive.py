"""Moving a file where one of both places is in a store, so that a crash loses nothing.

What is moved, and why, others decide. Nothing is ever overwritten, and a file leaves its place only
when all of it is in the other one: it has the same size and, as far as anybody has not compared
that on the way, the same SHA-256.
"""

import errno
import os
import shutil
from pathlib import Path
from uuid import uuid4

from batch_pipeline.domain.failpoint import failpoint
from batch_pipeline.domain.location import is_object, join_uri, to_path
from batch_pipeline.stores.checksums import look_with_sum
from batch_pipeline.stores.copies import digest
from batch_pipeline.stores.durable import sync_folder
from batch_pipeline.stores.facts import look
from batch_pipeline.stores.reading import open_uri
from batch_pipeline.stores.transfer import send
from batch_pipeline.stores.upload import remove

_CHUNK = 2**20


def archive(root: str, path: str, folder: str) -> bool:
    """Move a file to the same path below another folder; tells whether it was there.

    `root` and `folder` are URIs, of a folder on a disk or of a prefix of keys. A copy that an
    interrupted move has left in its place is taken for it.

    Raises:
        OSError: it cannot be moved, or another file has the name; it stays where it is.
    """
    source, target = join_uri(root, path), join_uri(folder, path)
    if not _is_there(source):
        return False
    try:
        _move(source, target)
    except FileNotFoundError:
        if _is_there(source):
            raise
        return False  # somebody was faster
    return True


def _move(source: str, target: str) -> None:
    if source == target:
        raise OSError(errno.EINVAL, "that is the folder it lies in", source)
    was_there = _is_there(target)
    if not was_there:
        _copy(source, target)
        failpoint("archive.copied")
    _check_same(source, target, is_checked=is_object(target) and not was_there)
    if not is_object(target):
        sync_folder(Path(to_path(target)).parent)
    failpoint("archive.before_unlink")
    if is_object(source):
        remove(source)
    else:
        Path(to_path(source)).unlink()


def _copy(source: str, target: str) -> None:
    if is_object(target):
        send(source, target)
        return
    path = Path(to_path(target))
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}-{uuid4().hex}.tmp")
    try:
        with open_uri(source) as read, aside.open("xb") as written:
            shutil.copyfileobj(read, written, _CHUNK)
            written.flush()
            os.fsync(written.fileno())
        if not path.exists():
            aside.rename(path)
    finally:
        aside.unlink(missing_ok=True)


def _check_same(source: str, target: str, *, is_checked: bool) -> None:
    """Compare sizes and sums; `is_checked` tells that the store has compared sums already."""
    (facts, known), (found, stored) = look_with_sum(source), look_with_sum(target)
    if facts.size_bytes != found.size_bytes:
        raise OSError(errno.EEXIST, "another file has its name there, of another size", target)
    if is_checked and None in {known, stored}:
        return
    if (known or digest(source)) != (stored or digest(target)):
        raise OSError(errno.EEXIST, "another file has its name there", target)


def _is_there(uri: str) -> bool:
    try:
        look(uri)
    except FileNotFoundError:
        return False
    return True
