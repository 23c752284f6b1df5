"""Looks at the first records of files as encoding would, without Spark and without writing."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from batch_pipeline.domain.errors import BadFileError
from batch_pipeline.domain.item import FoundFile
from batch_pipeline.domain.schema import Column, RecordSchema
from batch_pipeline.domain.stream import SourceFormat, Stream
from batch_pipeline.spark.check.check import Check
from batch_pipeline.spark.check.profile import Profile
from batch_pipeline.spark.read.csv_dialect import charset_guess
from batch_pipeline.spark.read.readers import open_reader
from batch_pipeline.spark.read.sources import open_source

_START_BYTES = 64 * 2**10
_BINARY = frozenset({SourceFormat.PARQUET, SourceFormat.AVRO})


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The first bytes of a file, decompressed, and what they look like.

    `text` is UTF-8, empty for a binary format; `is_whole` tells that nothing comes behind it.
    """

    format: SourceFormat
    text: bytes = b""
    charset: str = "utf-8"
    is_whole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What the first records of some files hold; `first_bad` tells of the first malformed one
    file, line and reason, `unread` of files that cannot be read at all.
    """

    files: int = 0
    records: int = 0
    columns: tuple[Column, ...] = ()
    bad: int = 0
    first_bad: tuple[str, int, str] | None = None
    unread: tuple[BadFileError, ...] = ()


def start_of(file: FoundFile, stream: Stream) -> Start:
    """Look at the start of a file.

    Raises:
        BadFileError: it cannot be opened, decompressed, or is of a kind that nothing here reads.
        SourceUnavailableError: its store cannot be reached.
    """
    with open_source(file, stream) as source:
        if source.format in _BINARY:
            return Start(format=source.format)
        text = source.read(_START_BYTES)
        if b"\0" in text:
            raise source.bad_file("holds zero bytes, which no text does")
        is_whole = len(text) < _START_BYTES
    charset = charset_guess(text)
    return Start(format=source.format, text=text, charset=charset, is_whole=is_whole)


def sampled(files: Sequence[FoundFile], stream: Stream, *, most_records: int) -> Sample:
    """Read up to so many records, give or take a chunk, of all the files together.

    The first file must be readable.

    Raises:
        BadFileError: the first file is not.
        SourceUnavailableError: a store cannot be reached.
    """
    profile = Profile(RecordSchema())
    check = Check(profile, stream)
    found = Sample()
    for number, file in enumerate(files, start=1):
        try:
            found = _with_file(found, file, stream, check, most_records * number // len(files))
        except BadFileError as error:
            if number == 1:
                raise
            found = replace(found, unread=(*found.unread, error))
    return replace(found, columns=tuple(profile.columns.values()))


def _with_file(
    found: Sample, file: FoundFile, stream: Stream, check: Check, most_records: int
) -> Sample:
    with open_source(file, stream) as source:
        found = replace(found, files=found.files + 1)
        for chunk in open_reader(source, stream).chunks():
            checked = check.checked(chunk)
            first = found.first_bad
            if checked.bad and first is None:
                first = (file.location, checked.bad[0].line, checked.bad[0].reason)
            found = replace(
                found,
                records=found.records + checked.good,
                bad=found.bad + len(checked.bad),
                first_bad=first,
            )
            if found.records + found.bad >= most_records:
                break
    return found
