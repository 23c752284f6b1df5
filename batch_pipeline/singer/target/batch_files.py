"""Finds and checks the files of a BATCH. Nothing is written, moved or registered here."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from batch_pipeline.domain.encoding import Compression, Format
from batch_pipeline.domain.item import FoundFile, modified_at
from batch_pipeline.domain.location import to_uri
from batch_pipeline.singer.incoming import json_text
from batch_pipeline.singer.incoming.values import BatchMessage
from batch_pipeline.singer.target.batch_reading import DAMAGES, lines_of, refusal

_LINE = msgspec.json.Decoder(dict[str, msgspec.Raw])
_MAGIC = {
    b"\x1f\x8b": Compression.GZIP,
    b"\x28\xb5\x2f\xfd": Compression.ZSTD,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedFile:
    """A file of a manifest that is what its BATCH says, as it is now."""

    path: Path
    found: FoundFile
    records: int


def locate(message: BatchMessage, root: str | None) -> list[Path]:
    """Give the paths of a manifest in order; with a root, files of the same names in it.

    What stands after `file://` is taken as it is, as the SDK does, and percent-decoded where no
    such file is there; in a root the decoded name stays a name in it.

    Raises:
        BatchFileError: a file is not on this machine's disks, or is not there, or is that of two
            entries.
    """
    paths: list[Path] = []
    known: dict[Path, str] = {}
    for uri in message.manifest:
        path = _locate(message, uri, root)
        before = known.setdefault(path.resolve(), uri)
        if len(known) == len(paths):
            problem = f"is what two entries of `manifest` stand for here: {before} and {uri}"
            raise refusal(message, path, problem)
        paths.append(path)
    return paths


def check(
    message: BatchMessage,
    number: int,
    path: Path,
    *,
    keys: tuple[str, ...],
    max_line_bytes: int,
) -> CheckedFile:
    """Read a file through to the end, once; `number` is its place in the manifest, from 0.

    Raises:
        BatchFileError: it cannot be read, is compressed in another way than its BATCH says, holds
            something else than objects with all keys, has a line that is too long, or changed
            meanwhile.
    """
    try:
        before = path.stat()
        _check_label(message, path)
        if message.sha256:
            _check_sum(message, path, message.sha256[number])
        count = _count(message, path, keys, max_line_bytes)
        after = path.stat()
    except OSError as error:
        reason = (error.strerror or str(error) or type(error).__name__).lower()
        raise refusal(message, path, f"cannot be read ({reason})") from error
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise refusal(message, path, "changed while it was read")
    found = FoundFile(
        location=to_uri(path), size_bytes=after.st_size, modified_at=modified_at(after)
    )
    return CheckedFile(path=path, found=found, records=count)


def _locate(message: BatchMessage, uri: str, root: str | None) -> Path:
    if "\0" in uri:
        raise refusal(message, repr(uri), "has a NUL in its name")
    if root is not None:
        folder = _local(message, root)
        name = uri.rpartition("/")[2]
        decoded = unquote(name)
        places = [folder / one for one in (name, decoded) if "/" not in one]
    else:
        written = _local(message, uri)
        places = [written, Path(unquote(str(written)))]
    for place in places:
        if place.is_file():
            return Path(os.path.abspath(place))  # noqa: PTH100 - links stay what they are
    raise refusal(message, places[0], "is not there, or is no file")


def _local(message: BatchMessage, uri: str) -> Path:
    scheme, separator, rest = uri.partition("://")
    if not separator:
        return Path(uri)
    if scheme.lower() != "file":
        known = urlsplit(uri).scheme if "[" not in uri else scheme
        problem = f"lies in a {known} storage; expected a file on a disk of this machine"
        raise refusal(message, uri, problem)
    return Path(rest.removeprefix("localhost"))


def _check_label(message: BatchMessage, path: Path) -> None:
    with path.open("rb") as file:
        start = file.read(4)
    if message.encoding.format is Format.PARQUET:
        if start != b"PAR1":
            raise refusal(message, path, f"is no parquet file (it begins with {start!r})")
        return
    real = next((one for magic, one in _MAGIC.items() if start.startswith(magic)), Compression.NONE)
    label = message.encoding.compression or Compression.NONE
    if real is not label and start:
        problem = (
            f"has compression {real.value}, while `encoding.compression` says {label.value} (taps "
            f"of the Singer SDK write gzip whatever they are told, so tell them gzip)"
        )
        raise refusal(message, path, problem)


def _check_sum(message: BatchMessage, path: Path, expected: str) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected.lower():
        problem = f"has the SHA-256 {found}, while its BATCH says {expected}"
        raise refusal(message, path, problem)


def _count(message: BatchMessage, path: Path, keys: tuple[str, ...], max_line_bytes: int) -> int:
    if message.encoding.format is Format.PARQUET:
        return _count_rows(message, path, keys)
    count = 0
    try:
        for number, line in lines_of(message, path, max_line_bytes=max_line_bytes):
            try:
                fields = _LINE.decode(line)
                if not line.isascii():
                    line.decode("utf-8")  # the decoder does not look into text that it skips
            except json_text.UNREADABLE as error:
                problem = f"line {number} is no JSON object ({error})"
                raise refusal(message, path, problem) from error
            for key in keys:
                if key not in fields:
                    raise refusal(message, path, f"line {number} lacks the key {key!r}")
            count += 1
    except DAMAGES as error:
        raise refusal(message, path, f"is damaged or breaks off ({error})") from error
    return count


def _count_rows(message: BatchMessage, path: Path, keys: tuple[str, ...]) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as table:
            lacking = [key for key in keys if key not in table.schema_arrow.names]
            if lacking:
                raise refusal(message, path, f"has no column {lacking[0]!r}, which is a key")
            return sum(len(batch) for batch in table.iter_batches(10_000))
    except pa.ArrowException as error:
        text = str(error).partition("\n")[0]
        raise refusal(message, path, f"is no parquet file that can be read ({text})") from error
