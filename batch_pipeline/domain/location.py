"""Locations of files as URIs: the one form in which they are stored and compared."""

import os
from pathlib import PurePath, PurePosixPath
from urllib.parse import quote_from_bytes, unquote_to_bytes

from batch_pipeline.domain.errors import InvalidValueError
from batch_pipeline.domain.file_range import split_location

_EXPECTED = "an absolute file URI such as file:///data/orders.csv"


def to_uri(path: PurePath | str) -> str:
    """Give the percent-encoded file URI of an absolute path; any bytes of a name survive.

    Raises:
        InvalidValueError: the path is relative or holds a NUL byte.
    """
    pure = PurePosixPath(path)
    raw = os.fsencode(pure)
    if not pure.is_absolute() or b"\0" in raw:
        raise InvalidValueError("path", str(path), "an absolute path")
    return "file://" + quote_from_bytes(b"/" + raw.lstrip(b"/"))


def to_location(written: object) -> str:
    """Give the location that a user's table means: by a file URI, or by an absolute path.

    A URI may end with a range of bytes, a path may not: what looks like one belongs to its name.

    Raises:
        InvalidValueError: it is neither, or no file can have the range.
    """
    if isinstance(written, str) and "\0" not in written:
        if written.startswith("/"):
            return to_uri(written)
        if written.lower().startswith("file:///"):
            uri, part = split_location(written)
            return to_uri(to_path(uri)) + ("" if part is None else part.fragment)
    raise InvalidValueError("location", written, f"an absolute path, or {_EXPECTED}")


def to_path(uri: str) -> str:
    """Give the absolute path that a file URI names; inverse of `to_uri`.

    Of a location with a range of bytes it is the path of the file.

    Raises:
        InvalidValueError: another scheme, a host, a relative path or a NUL byte.
    """
    scheme, separator, rest = split_location(uri)[0].partition("://")
    raw = unquote_to_bytes(rest)
    if scheme.lower() != "file" or not separator or not raw.startswith(b"/") or b"\0" in raw:
        raise InvalidValueError("location", uri, _EXPECTED)
    return os.fsdecode(raw)
