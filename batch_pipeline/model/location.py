"""Locations of files: URIs of local files and objects, byte ranges, and allowed roots.

A location is a URI, with a fragment for a byte range: `…csv#bytes=0-99,size=250`. First and last
byte are included, as in HTTP; the size is that of the whole file and optional. A `#` in a file name
is written `%23`, so the fragment is unambiguous. `to_location` normalizes what a user's table
contains; `Roots` decides which locations may be read. The functions work on text and never open a
file.
"""

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePath, PurePosixPath
from urllib.parse import quote_from_bytes, unquote_to_bytes

from batch_pipeline.model.errors import InvalidValueError
from batch_pipeline.model.filter import is_storable

MARK = "#bytes="
_RANGE = re.compile(r"(?s)(.*)#bytes=([0-9]{1,19})-([0-9]{1,19})(?:,size=([0-9]{1,19}))?")


@dataclass(frozen=True, slots=True)
class FileRange:
    """Non-empty byte range of a file, from `start` up to but not including `stop`.

    `file_bytes` is the size of the whole file, None if it is not recorded.

    Raises:
        InvalidValueError: the range is empty or exceeds the file.
    """

    start: int
    stop: int
    file_bytes: int | None = None

    def __post_init__(self) -> None:
        end = self.stop if self.file_bytes is None else self.file_bytes
        if not 0 <= self.start < self.stop <= end:
            expected = f"a range of bytes of its file, such as {MARK}0-99"
            raise InvalidValueError("location", self.fragment, expected)

    @property
    def size_bytes(self) -> int:
        """Return the size of the range."""
        return self.stop - self.start

    @property
    def fragment(self) -> str:
        """Return the fragment that is appended to the URI of the file."""
        size = "" if self.file_bytes is None else f",size={self.file_bytes}"
        return f"{MARK}{self.start}-{self.stop - 1}{size}"


def split_location(location: str) -> tuple[str, FileRange | None]:
    """Split a location into the URI and its byte range, None for the whole file.

    Raises:
        InvalidValueError: no file can have the range.
    """
    match = _RANGE.fullmatch(location) if MARK in location else None
    if match is None:
        return location, None
    size = None if match[4] is None else int(match[4])
    return match[1], FileRange(int(match[2]), int(match[3]) + 1, size)


S3 = "s3"
S3_SCHEMES = (S3, "s3a", "s3n")  # Hadoop's schemes for the same objects
_EXPECTED = "an absolute file URI such as file:///data/orders.csv"
_EXPECTED_OBJECT = "the URI of an object such as s3://bucket/orders/2026.csv"
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{2,254}")
_MOST_KEY_BYTES = 1024
_UNCLEAR = frozenset({"", ".", ".."})  # ambiguous as parts of a path


def scheme_of(uri: str) -> str:
    """Return the scheme of a URI in lower case, empty if it has none."""
    scheme, separator, _ = uri.partition("://")
    return scheme.lower() if separator else ""


def is_object(uri: str) -> bool:
    """Return whether a URI names an object in a store, not a local file."""
    return scheme_of(uri) == S3


def to_object_uri(bucket: str, key: str) -> str:
    """Return the URI of an object or of a key prefix."""
    return f"{S3}://{bucket}/{key}"


def as_s3(uri: str) -> str:
    """Return the URI with `s3a://` and `s3n://` replaced by `s3://`; others are unchanged."""
    return S3 + uri[uri.index("://") :] if scheme_of(uri) in S3_SCHEMES else uri


def split_object(uri: str) -> tuple[str, str]:
    """Return bucket and key of the URI of an object; the key may be empty or a prefix.

    A byte range of the location is ignored.

    Raises:
        InvalidValueError: it is not the URI of an object.
    """
    scheme, separator, rest = split_location(uri)[0].partition("://")
    bucket, _, key = rest.partition("/")
    fits = separator and _BUCKET.fullmatch(bucket) and is_storable(key)
    if scheme.lower() != S3 or not fits or len(key.encode()) > _MOST_KEY_BYTES:
        raise InvalidValueError("location", uri, _EXPECTED_OBJECT)
    return bucket, key


def join_uri(root: str, name: str) -> str:
    """Return the URI of a name, which needs no escaping, in a folder or below a key prefix."""
    return f"{root.rstrip('/')}/{name}" if name else root


# Paths whose URI has no escapes: most files, in a tenth of the time of the general case.
_PLAIN_PATH = re.compile(r"(?:/(?!\.(?:/|\Z))[A-Za-z0-9_.~-]+)+")
_PLAIN_URI = re.compile(r"file://(/[A-Za-z0-9_.~/-]*)")


def to_uri(path: PurePath | str) -> str:
    """Return the percent-encoded file URI of an absolute path; names may contain any bytes.

    Raises:
        InvalidValueError: the path is relative or contains a NUL byte.
    """
    if isinstance(path, str) and _PLAIN_PATH.fullmatch(path):
        return f"file://{path}"
    pure = PurePosixPath(path)
    raw = os.fsencode(pure)
    if not pure.is_absolute() or b"\0" in raw:
        raise InvalidValueError("path", str(path), "an absolute path")
    return "file://" + quote_from_bytes(b"/" + raw.lstrip(b"/"))


def to_location(written: object) -> str:
    """Return the location for a value of a user's table: the URI of a file or object, or a path.

    A URI may end with a byte range; in a path such a suffix is part of the name. Escapes are
    decoded once, in file URIs only. Forms that programs resolve differently, such as `..` and
    backslashes, are rejected, not resolved.

    Raises:
        InvalidValueError: it is neither a URI nor a path, or no file can have the range.
    """
    location: str | None = None
    if isinstance(written, str) and is_storable(written):
        if written.startswith("/"):
            location = _plain_file(written)
        elif written.lower().startswith("file:///"):
            uri, part = split_location(written)
            if "?" not in uri and "#" not in uri:
                location = _plain_file(to_path(uri), "" if part is None else part.fragment)
        else:
            with suppress(InvalidValueError):
                location = _plain_object(as_s3(written))
    if location is not None:
        return location
    expected = (
        f"an absolute path, {_EXPECTED}, or {_EXPECTED_OBJECT}, without `.`, `..`, empty parts or "
        f"backslashes between slashes; in URIs of files `?` is %3F, `#` %23"
    )
    raise InvalidValueError("location", written, expected)


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
    """Return the absolute path that a file URI names; the inverse of `to_uri`.

    A byte range of the location is ignored.

    Raises:
        InvalidValueError: another scheme, a host, a relative path or a NUL byte.
    """
    if plain := _PLAIN_URI.fullmatch(uri):
        return plain[1]
    scheme, separator, rest = split_location(uri)[0].partition("://")
    raw = unquote_to_bytes(rest)
    if scheme.lower() != "file" or not separator or not raw.startswith(b"/") or b"\0" in raw:
        raise InvalidValueError("location", uri, _EXPECTED)
    return os.fsdecode(raw)


def shown(uri: str) -> str:
    """Return the form of a URI for people: the path of a local file, the URI of an object.

    Raises:
        InvalidValueError: the URI is neither.
    """
    return uri if is_object(uri) else to_path(uri)


_DOTS = re.compile(rf"/\.{{1,2}}(?=/|{MARK}|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Roots:
    """Folders and key prefixes that files may be read from; `key` is their stream-file key.

    If the roots are `closed`, nothing else is read. Otherwise a location outside them was checked
    when it was registered, and is read if its path has no symbolic link.
    """

    uris: tuple[str, ...] = ()
    key: str = "source.roots"
    closed: bool = True

    def hold(self, location: str) -> bool:
        """Return whether a location is textually below one of the roots.

        Only whole path segments match: `/data/in` does not contain `/data/internal`. A key with
        `.` or `..` as a segment is below no root, since a proxy or client may resolve it.
        """
        is_below = any(location.startswith(f"{uri.rstrip('/')}/") for uri in self.uris)
        return is_below and not has_dots(location)

    def refuse(self, location: str) -> bool:
        """Return whether a location must not be read."""
        return not self.hold(location) and (self.closed or has_dots(location))

    @property
    def advice(self) -> str:
        """Return why a file was not opened, and how to allow it."""
        return f"is outside `{self.key}`, so it was not opened; move it, or add its folder"


def has_dots(location: str) -> bool:
    """Return whether the key of an object has `.` or `..` as a segment."""
    if not is_object(location):
        return False  # local files are checked by their real path
    return _DOTS.search(location) is not None
