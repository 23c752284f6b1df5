"""Files of BATCH messages: locate, verify and read them.

`locate` resolves the manifest's entries, `fetch` makes a file readable, `check` verifies it and
`records` reads it. Only files below the allowed roots are opened.
"""

import errno
import hashlib
import io
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, BinaryIO, cast
from urllib.parse import unquote

import msgspec
import pyarrow as pa

from batch_pipeline.encode.arrow_types import ArrowTypeUnknownError
from batch_pipeline.encode.json_values import json_text
from batch_pipeline.encode.readers.arrow_values import columns_from_schema, to_python_values
from batch_pipeline.encode.readers.compression import (
    EXPANSION_CHECKED_FROM_BYTES,
    detect_compression,
)
from batch_pipeline.encode.readers.parquet import ParquetTable
from batch_pipeline.model.encoding import Compression, Format
from batch_pipeline.model.errors import InvalidValueError, RetryableError
from batch_pipeline.model.item import LandedFile
from batch_pipeline.model.location import (
    S3_SCHEMES,
    Roots,
    as_s3,
    join_uri,
    scheme_of,
    shown,
    split_location,
    split_object,
    to_uri,
)
from batch_pipeline.model.record_rules import OnNonfinite, ReadLimits
from batch_pipeline.singer import parser
from batch_pipeline.singer.parser import BatchMessage, MessageError
from batch_pipeline.storage.filesystem import (
    FileFacts,
    filesystem_of,
    is_about_file,
    reason_of,
)
from batch_pipeline.storage.local import facts_of_status, local_file, open_within
from batch_pipeline.storage.part_formats.jsonl import DECOMPRESSION_ERRORS, decompressed

_BLANKS = b" \t\r\n"  # JSON whitespace
_CHUNK = 1 << 20
_ANY_REAL_PATH = Roots(uris=(), key="batch_roots", closed=False)  # accepts any path without links
_LINE = msgspec.json.Decoder(dict[str, msgspec.Raw])
_EXPECTED = "expected a file on a disk of this machine, or an object of S3"


_WRITE_AGAIN = "Have the tap write it again"
_ADD_ROOT = (
    "Add the folder of the tap's files to `batch_roots` in the target's config, or have the tap "
    "write into one of those"
)


class UnusableFileError(Exception):
    """A file of a manifest that cannot be used; the text completes a sentence about `file`.

    `file` is None for the file that is being read.
    """

    def __init__(self, problem: str, file: object = None, *, step: str = _WRITE_AGAIN) -> None:
        super().__init__(problem)
        self.file = file
        self.step = step


@contextmanager
def _message_errors(
    message: BatchMessage,
    file: object = None,
    *,
    left: str = "Nothing of the manifest was registered. ",
) -> Iterator[None]:
    """Translate errors about files to errors of the line that lists them; `left` is the state."""
    try:
        yield
    except UnusableFileError as error:
        problem = f"{file if error.file is None else error.file} {error}"
        step = f"{left}{error.step}"
        raise MessageError(message.line, problem, message.stream, "manifest", step) from error


@contextmanager
def _store_errors(message: BatchMessage, location: str) -> Iterator[None]:
    """Translate errors of the store of a file."""
    try:
        yield
    except FileNotFoundError as error:
        raise UnusableFileError("does not exist", location) from error
    except OSError as error:
        reason = reason_of(error)
        if is_about_file(location, error):
            raise UnusableFileError(f"cannot be read ({reason})", location) from error
        raise RetryableError(
            f"Line {message.line}, key `manifest`: {location} cannot be read now ({reason}). "
            f"Nothing of the manifest was registered. When the store answers, run again from the "
            f"last STATE that was printed."
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFile:
    """A file of a manifest; `path` is the local file with its content, without links.

    An object has `facts`, and no path until `fetch` has copied the version that they describe.
    """

    location: str
    path: Path = Path()
    facts: FileFacts | None = None

    def __str__(self) -> str:
        return shown(self.location)

    def open(self) -> "BufferedReader[Any]":
        """Open the file for reading.

        Raises:
            OSError: the file cannot be opened, or it or a folder was replaced by a link.
        """
        if self.facts is not None:
            return self.path.open("rb")
        return open_within(self.location, _ANY_REAL_PATH)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedFile:
    """A verified file of a manifest in its current state."""

    file: BatchFile
    landed: LandedFile
    records: int


def locate(message: BatchMessage, root: str | None, roots: Roots) -> list[BatchFile]:
    """Return the files of a manifest in order; with a root, files with the same names below it.

    Local files have their real paths, which are below the root or one of `roots`; other paths are
    not accessed. The text after `file://` is used unchanged, as in the SDK, and percent-decoded if
    there is no such file. A decoded name never leaves the root. Keys of `s3://bucket/key` stay
    unchanged.

    Raises:
        MessageError: a file is outside of the roots, or a link leads outside.
        MessageError: a file is neither local nor in S3, does not exist, or is listed twice.
        RetryableError: a store is currently unreachable.
    """
    files: list[BatchFile] = []
    known: dict[str, str] = {}
    with _message_errors(message):
        within = roots if root is None else replace(roots, uris=(*roots.uris, _root_uri(root)))
        for uri in message.manifest:
            file = _locate_file(message, uri, root, within)
            before = known.setdefault(file.location, uri)
            if len(known) == len(files):
                problem = f"is the file of two entries of `manifest`: {before} and {uri}"
                raise UnusableFileError(problem, file)
            files.append(file)
    return files


def _root_uri(root: str) -> str:
    if scheme_of(root) in {"", "file"}:
        return to_uri(os.path.normpath(_local_path(root).absolute()))
    return _s3_uri(root).rstrip("/")


def _locate_file(message: BatchMessage, uri: str, root: str | None, within: Roots) -> BatchFile:
    if "\0" in unquote(uri):
        raise UnusableFileError("has a NUL in its name", repr(uri))
    if scheme_of(uri if root is None else root) not in {"", "file"}:
        return _locate_object(message, uri, None if root is None else _s3_uri(root), within)
    if root is not None:
        paths = [_local_path(root) / name for name in _candidate_names(uri)]
    else:
        written = _local_path(uri)
        paths = [written, Path(unquote(str(written)))]
    for path in paths:
        if ".." in path.parts or not within.hold(to_uri(path.absolute())):
            raise _outside_roots(path)
        if _is_file(path):
            uri = to_uri(path.absolute())
            if filesystem_of(uri).leads_outside(uri, within):
                raise _outside_roots(path)
            there = Path(os.path.realpath(path))
            return BatchFile(location=to_uri(there), path=there)
    raise UnusableFileError("does not exist, or is not a file", paths[0])


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return False  # the decoded name is shorter, and may be that of a file
        raise UnusableFileError(f"cannot be read ({reason_of(error)})", path) from error


def _locate_object(message: BatchMessage, uri: str, root: str | None, within: Roots) -> BatchFile:
    if root is None:
        locations = [_s3_uri(uri)]
    else:
        locations = [join_uri(root, name) for name in _candidate_names(uri)]
    for location in locations:
        if split_location(location)[1] is not None:
            problem = "has a name that looks like a range of a file's bytes"
            raise UnusableFileError(problem, location)
        if not within.hold(location):
            raise _outside_roots(location)
        with _store_errors(message, location), suppress(FileNotFoundError):
            facts = filesystem_of(location).head(location)
            return BatchFile(location=location, facts=facts)
    raise UnusableFileError("does not exist", locations[0])


def _outside_roots(place: Path | str) -> UnusableFileError:
    problem = "is outside `batch_roots`, so it was not opened"
    return UnusableFileError(problem, place, step=_ADD_ROOT)


def _candidate_names(uri: str) -> list[str]:
    """Return the possible names of a file below a root: as written, then decoded."""
    last = uri.rpartition("/")[2]
    return [name for name in (last, unquote(last)) if "/" not in name]


def _local_path(uri: str) -> Path:
    _, separator, rest = uri.partition("://")
    return Path(rest.removeprefix("localhost")) if separator else Path(uri)


def _s3_uri(uri: str) -> str:
    """Return the normalized S3 URI of an object or root."""
    if scheme_of(uri) not in S3_SCHEMES:
        raise UnusableFileError(f"is in {scheme_of(uri)} storage; {_EXPECTED}", uri)
    plain = as_s3(uri)
    try:
        split_object(plain)
    except InvalidValueError as error:
        raise UnusableFileError(f"is not the URI of an object; {_EXPECTED}", uri) from error
    return plain


@contextmanager
def fetch(message: BatchMessage, file: BatchFile) -> Iterator[BatchFile]:
    """Yield a file with its local path; an object is downloaded once, for the context's duration.

    Raises:
        MessageError: the object no longer exists, or another version has replaced it.
        RetryableError: the store is currently unreachable.
    """
    if file.facts is None:
        yield file
        return
    with ExitStack() as copies:
        with _message_errors(message), _store_errors(message, file.location):
            path = copies.enter_context(local_file(file.location, file.facts.etag))
        yield replace(file, path=path)


def check(
    message: BatchMessage,
    number: int,
    file: BatchFile,
    *,
    keys: tuple[str, ...],
    limits: ReadLimits,
) -> CheckedFile:
    """Read a file completely and verify it; `number` is its index in the manifest.

    Raises:
        MessageError: the file cannot be read, has another compression than its BATCH states,
            contains anything but objects with all keys, exceeds a limit, or changed while it was
            read.
    """
    with _message_errors(message, file):
        try:
            before = file.path.stat()
            _check_compression(message, file)
            if message.sha256:
                _check_sha256(file, message.sha256[number])
            if message.encoding.format is Format.PARQUET:
                count = _count_rows(file, keys, limits)
            else:
                count = _count_lines(message, file, keys, limits)
            after = file.path.stat()
        except OSError as error:
            raise UnusableFileError(f"cannot be read ({reason_of(error)})") from error
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise UnusableFileError("changed while it was read")
    facts = file.facts or facts_of_status(after)
    return CheckedFile(file=file, landed=facts.landed_as(file.location), records=count)


def _check_compression(message: BatchMessage, file: BatchFile) -> None:
    with file.open() as opened:
        start = opened.read(10)
    if message.encoding.format is Format.PARQUET:
        if not start.startswith(b"PAR1"):
            raise UnusableFileError(f"is not a parquet file (it begins with {start[:4]!r})")
        return
    actual = detect_compression(start) or Compression.NONE
    label = message.encoding.compression or Compression.NONE
    if actual.value != label.value and start:
        raise UnusableFileError(
            f"has compression {actual.value}, while `encoding.compression` says {label.value} "
            f"(taps of the Singer SDK always write gzip: set gzip in their config)"
        )


def _check_sha256(file: BatchFile, expected: str) -> None:
    with file.open() as opened:
        sha256 = hashlib.file_digest(opened, "sha256").hexdigest()
    if sha256 != expected.lower():
        raise UnusableFileError(f"has the SHA-256 {sha256}, while its BATCH says {expected}")


def _count_lines(
    message: BatchMessage, file: BatchFile, keys: tuple[str, ...], limits: ReadLimits
) -> int:
    count = 0
    try:
        for number, line in _numbered_lines(message, file, limits):
            try:
                fields = _LINE.decode(line)
                if not line.isascii():
                    line.decode("utf-8")  # the decoder does not validate text that it skips
            except parser.DECODE_ERRORS as error:
                raise UnusableFileError(f"line {number} is not a JSON object ({error})") from error
            for key in keys:
                if key not in fields:
                    raise UnusableFileError(f"line {number} lacks the key {key!r}")
            count += 1
    except DECOMPRESSION_ERRORS as error:
        raise UnusableFileError(f"is damaged or truncated ({error})") from error
    return count


def _count_rows(file: BatchFile, keys: tuple[str, ...], limits: ReadLimits) -> int:
    try:
        with file.open() as opened:
            table = _open_table(opened, file, limits)
            missing = [key for key in keys if key not in table.schema.names]
            if missing:
                raise UnusableFileError(f"has no column {missing[0]!r}, which is a key")
            return sum(len(batch) for batch in _batches(table))
    except (pa.ArrowException, UnicodeDecodeError) as error:  # UnicodeDecodeError: a column name
        text = str(error).partition("\n")[0]
        raise UnusableFileError(f"is not a parquet file that can be read ({text})") from error


def _open_table(opened: BinaryIO, file: BatchFile, limits: ReadLimits) -> ParquetTable:
    packed_bytes = file.path.stat().st_size
    check_growth = partial(_check_expansion, limits, packed_bytes)
    table = ParquetTable(opened, check_growth, coerce_int96_timestamp_unit="us")
    table.check_expansion()
    return table


def _batches(table: ParquetTable) -> Iterator[pa.RecordBatch]:
    for group in range(table.file.num_row_groups):
        for batch, _ in table.batches(group):
            yield batch


def records(
    message: BatchMessage, file: BatchFile, limits: ReadLimits
) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yield the records of a checked file, each after its JSON text.

    Raises:
        MessageError: a value cannot be represented, or a key is duplicated.
    """
    with _message_errors(message, file, left=""):  # earlier records may have landed
        if message.encoding.format is Format.PARQUET:
            yield from _rows(file, limits)
            return
        for number, line in _numbered_lines(message, file, limits):
            try:
                record = parser.EXACT_DECODER.decode(line)
                if not parser.is_complete(record, line):
                    parser.parse(line)
            except parser.DuplicateKeyError as error:
                raise UnusableFileError(f"line {number} has {error} twice") from error
            except parser.DECODE_ERRORS as error:
                problem = f"line {number} has a value that cannot be represented ({error})"
                raise UnusableFileError(problem) from error
            yield line, record


def _rows(file: BatchFile, limits: ReadLimits) -> Iterator[tuple[bytes, dict[str, Any]]]:
    first = 1
    try:
        with file.open() as opened:
            table = _open_table(opened, file, limits)
            columns_from_schema(table.schema, limits)  # checks the names
            for batch in _batches(table):
                for row in to_python_values(batch.to_struct_array()):
                    text = json_text(row, OnNonfinite.QUARANTINE)
                    yield text, parser.EXACT_DECODER.decode(text)
                first += batch.num_rows
    except (ArrowTypeUnknownError, pa.ArrowException, LookupError, *parser.DECODE_ERRORS) as error:
        reason = str(error).partition("\n")[0]
        problem = f"has a value in or after record {first} that cannot be represented ({reason})"
        raise UnusableFileError(problem) from error


def _numbered_lines(
    message: BatchMessage, file: BatchFile, limits: ReadLimits
) -> Iterator[tuple[int, bytes]]:
    """Yield the non-blank lines of a file with their line numbers, counted from 1.

    Reading stops at a line that is too long, or when the file expands too much.
    """
    number = size_bytes = 0
    most = limits.max_record_bytes
    with file.open() as raw:
        packed_bytes = raw.seek(0, io.SEEK_END)
        raw.seek(0)
        opened = _decompressed(message, raw)
        while line := opened.readline(most + 1):
            number += 1
            if len(line) > most and not line.endswith(b"\n"):
                problem = f"line {number} has more than {most} bytes (`max_line_bytes`)"
                raise UnusableFileError(problem)
            size_bytes += len(line)
            _check_expansion(limits, packed_bytes, size_bytes)
            text = line.strip(_BLANKS)
            if text:
                yield number, text


def _decompressed(message: BatchMessage, raw: BinaryIO) -> IO[bytes]:
    """Return the decompressed content of an open file."""
    compression = message.encoding.compression or Compression.NONE
    if compression is Compression.ZSTD:
        # Other readers accept truncated data as complete.
        reader = pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd")
        return cast("IO[bytes]", io.BufferedReader(reader, _CHUNK))
    return decompressed(raw, compression)


def _check_expansion(limits: ReadLimits, packed_bytes: int, size_bytes: int) -> None:
    is_checked = size_bytes >= EXPANSION_CHECKED_FROM_BYTES
    if is_checked and size_bytes > limits.max_expansion * packed_bytes:
        raise UnusableFileError(
            f"expands more than {limits.max_expansion}-fold when it is decompressed "
            f"(`max_expansion`)"
        )
