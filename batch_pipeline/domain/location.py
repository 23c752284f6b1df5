"""Locations of files as URIs: the one form in which they are stored and compared.

A file URI is percent-encoded. Of `s3://bucket/key` the key stands as it is, as in AWS's own tools.
"""

import os
import re
from contextlib import suppress
from pathlib import PurePath, PurePosixPath
from urllib.parse import quote_from_bytes, unquote_to_bytes

from batch_pipeline.domain.errors import InvalidValueError
from batch_pipeline.domain.file_range import split_location

S3 = "s3"
S3_SCHEMES = (S3, "s3a", "s3n")  # Hadoop's names of the same objects
_EXPECTED = "an absolute file URI such as file:///data/orders.csv"
_EXPECTED_OBJECT = "the URI of an object such as s3://bucket/orders/2026.csv"
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{2,254}")
_MOST_KEY_BYTES = 1024
_UNCLEAR = frozenset({"", ".", ".."})  # names that paths have no use for


def scheme_of(uri: str) -> str:
    """Give the scheme of a URI in lower case; empty where there is none."""
    scheme, separator, _ = uri.partition("://")
    return scheme.lower() if separator else ""


def is_object(uri: str) -> bool:
    """Tell objects of a store from files of a disk."""
    return scheme_of(uri) == S3


def to_object_uri(bucket: str, key: str) -> str:
    """Give the URI of an object, or of a prefix of keys."""
    return f"{S3}://{bucket}/{key}"


def as_s3(uri: str) -> str:
    """Give the `s3://` form of what also `s3a://` or `s3n://` may name; others stay as they are."""
    return S3 + uri[uri.index("://") :] if scheme_of(uri) in S3_SCHEMES else uri


def split_object(uri: str) -> tuple[str, str]:
    """Give bucket and key of the URI of an object; the key may be empty, or a prefix.

    Of a location with a range of bytes they are those of the whole object.

    Raises:
        InvalidValueError: it is no such URI.
    """
    scheme, separator, rest = split_location(uri)[0].partition("://")
    bucket, _, key = rest.partition("/")
    fits = separator and _BUCKET.fullmatch(bucket) and len(key.encode()) <= _MOST_KEY_BYTES
    if scheme.lower() != S3 or not fits or "\0" in key:
        raise InvalidValueError("location", uri, _EXPECTED_OBJECT)
    return bucket, key


def join_uri(root: str, name: str) -> str:
    """Give the URI of a name, of safe characters, in a folder or below a prefix of keys."""
    return f"{root.rstrip('/')}/{name}" if name else root


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
    """Give the location that a user's table means: by the URI of a file or an object, or by a path.

    A URI may end with a range of bytes, a path may not: what looks like one belongs to its name.
    Escapes are read once, in URIs of files only. What others may resolve in another way, such as
    `..` and backslashes, is refused, not resolved.

    Raises:
        InvalidValueError: it is neither, or no file can have the range.
    """
    found: str | None = None
    if isinstance(written, str) and _is_text(written):
        if written.startswith("/"):
            found = _plain_file(written)
        elif written.lower().startswith("file:///"):
            uri, part = split_location(written)
            if "?" not in uri and "#" not in uri:
                found = _plain_file(to_path(uri), "" if part is None else part.fragment)
        else:
            with suppress(InvalidValueError):
                found = _plain_object(as_s3(written))
    if found is not None:
        return found
    expected = (
        f"an absolute path, {_EXPECTED}, or {_EXPECTED_OBJECT}, without "
        f"`.`, `..`, nothing, or a backslash between slashes; in URIs of files `?` is %3F, `#` %23"
    )
    raise InvalidValueError("location", written, expected)


def _is_text(written: str) -> bool:
    return "\0" not in written and not any("\ud800" <= one <= "\udfff" for one in written)


def _plain_file(path: str, fragment: str = "") -> str | None:
    names = path[1:].split("/")
    is_plain = _UNCLEAR.isdisjoint(names) and "\\" not in path
    return to_uri(path) + fragment if is_plain else None


def _plain_object(written: str) -> str | None:
    bucket, key = split_object(written)
    part = split_location(written)[1]
    fragment = "" if part is None else part.fragment
    is_plain = {".", ".."}.isdisjoint(key.split("/"))
    return to_object_uri(bucket, key) + fragment if key and is_plain else None


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


def shown(uri: str) -> str:
    """Give what people call the file of a URI: its path on a disk, of an object the URI.

    Raises:
        InvalidValueError: it is neither.
    """
    return uri if is_object(uri) else to_path(uri)
