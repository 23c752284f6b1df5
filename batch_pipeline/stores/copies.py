"""A file of a disk with the bytes of a URI: the file itself, or a temporary copy of an object."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from batch_pipeline.domain.location import is_object, split_object, to_path
from batch_pipeline.stores.reading import open_uri

_CHUNK = 2**20
_MOST_NAME_BYTES = 255


@contextmanager
def local_file(uri: str, etag: str | None = None) -> Iterator[Path]:
    """Give a path where the bytes can be read; a copy is removed afterwards.

    Of an object it is the version with this ETag, if one is given.

    Raises:
        InvalidValueError: the URI names neither a file nor an object.
        OSError: the object is not there, is another version or cannot be copied.
    """
    if not is_object(uri):
        yield Path(to_path(uri))
        return
    with tempfile.TemporaryDirectory(prefix="bp-") as folder:
        path = Path(folder, _name_of(uri))
        with open_uri(uri, etag) as source, path.open("xb") as target:
            shutil.copyfileobj(source, target, _CHUNK)
        yield path


def _name_of(uri: str) -> str:
    """Give the last name of a key, where a file may have it."""
    name = split_object(uri)[1].rpartition("/")[2]
    may_be = name not in {"", ".", ".."} and len(os.fsencode(name)) <= _MOST_NAME_BYTES
    return name if may_be else "object"


def digest(uri: str) -> str:
    """Give the SHA-256 of the bytes as hexadecimal digits; memory is constant.

    Raises:
        InvalidValueError: the URI names neither a file nor an object.
        OSError: it is not there or cannot be read.
    """
    with open_uri(uri) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
