"""Checks the files of a BATCH. Nothing is written, moved or registered here."""

import hashlib
from dataclasses import dataclass

import msgspec

from batch_pipeline.domain.encoding import Compression, Format
from batch_pipeline.domain.item import FoundFile
from batch_pipeline.singer.incoming import json_text
from batch_pipeline.singer.incoming.values import BatchMessage
from batch_pipeline.singer.target.batch_reading import (
    DAMAGES,
    BatchFile,
    BatchLimits,
    check_expansion,
    lines_of,
    refusal,
)
from batch_pipeline.stores.facts import FileFacts
from batch_pipeline.stores.failures import reason_of

_LINE = msgspec.json.Decoder(dict[str, msgspec.Raw])
_MAGIC = {
    b"\x1f\x8b": Compression.GZIP,
    b"\x28\xb5\x2f\xfd": Compression.ZSTD,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedFile:
    """A file of a manifest that is what its BATCH says, as it is now."""

    file: BatchFile
    found: FoundFile
    records: int


def check(
    message: BatchMessage,
    number: int,
    file: BatchFile,
    *,
    keys: tuple[str, ...],
    limits: BatchLimits,
) -> CheckedFile:
    """Read a file through to the end, once; `number` is its place in the manifest, from 0.

    Raises:
        BatchFileError: it cannot be read, is compressed in another way than its BATCH says, holds
            something else than objects with all keys, has a line that is too long, grows too much
            when it is decompressed, or changed meanwhile.
    """
    try:
        before = file.path.stat()
        _check_label(message, file)
        if message.sha256:
            _check_sum(message, file, message.sha256[number])
        count = _count(message, file, keys, limits)
        after = file.path.stat()
    except OSError as error:
        raise refusal(message, file, f"cannot be read ({reason_of(error)})") from error
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise refusal(message, file, "changed while it was read")
    facts = file.facts or FileFacts.of_stat(after)
    found = FoundFile(
        location=file.location,
        size_bytes=facts.size_bytes,
        modified_at=facts.modified_at,
        etag=facts.etag,
    )
    return CheckedFile(file=file, found=found, records=count)


def _check_label(message: BatchMessage, file: BatchFile) -> None:
    with file.open() as opened:
        start = opened.read(4)
    if message.encoding.format is Format.PARQUET:
        if start != b"PAR1":
            raise refusal(message, file, f"is no parquet file (it begins with {start!r})")
        return
    real = next((one for magic, one in _MAGIC.items() if start.startswith(magic)), Compression.NONE)
    label = message.encoding.compression or Compression.NONE
    if real is not label and start:
        problem = (
            f"has compression {real.value}, while `encoding.compression` says {label.value} (taps "
            f"of the Singer SDK write gzip whatever they are told, so tell them gzip)"
        )
        raise refusal(message, file, problem)


def _check_sum(message: BatchMessage, file: BatchFile, expected: str) -> None:
    with file.open() as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
    if found != expected.lower():
        problem = f"has the SHA-256 {found}, while its BATCH says {expected}"
        raise refusal(message, file, problem)


def _count(
    message: BatchMessage, file: BatchFile, keys: tuple[str, ...], limits: BatchLimits
) -> int:
    if message.encoding.format is Format.PARQUET:
        return _count_rows(message, file, keys, limits)
    count = 0
    try:
        for number, line in lines_of(message, file, limits):
            try:
                fields = _LINE.decode(line)
                if not line.isascii():
                    line.decode("utf-8")  # the decoder does not look into text that it skips
            except json_text.UNREADABLE as error:
                problem = f"line {number} is no JSON object ({error})"
                raise refusal(message, file, problem) from error
            for key in keys:
                if key not in fields:
                    raise refusal(message, file, f"line {number} lacks the key {key!r}")
            count += 1
    except DAMAGES as error:
        raise refusal(message, file, f"is damaged or breaks off ({error})") from error
    return count


def _count_rows(
    message: BatchMessage, file: BatchFile, keys: tuple[str, ...], limits: BatchLimits
) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with file.open() as opened, pq.ParquetFile(opened) as table:
            groups = [table.metadata.row_group(one) for one in range(table.num_row_groups)]
            size_bytes = sum(group.total_byte_size for group in groups)
            packed_bytes = file.path.stat().st_size
            check_expansion(message, file, limits, packed_bytes, size_bytes)
            lacking = [key for key in keys if key not in table.schema_arrow.names]
            if lacking:
                raise refusal(message, file, f"has no column {lacking[0]!r}, which is a key")
            return sum(len(batch) for batch in table.iter_batches(10_000))
    except (pa.ArrowException, UnicodeDecodeError) as error:  # the latter of a column's name
        text = str(error).partition("\n")[0]
        raise refusal(message, file, f"is no parquet file that can be read ({text})") from error
