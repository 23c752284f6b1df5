"""Read the first records of files as an encode does, without Spark and without writing.

The `init` command proposes a stream file from the result.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from batch_pipeline.encode.chunks import Chunk
from batch_pipeline.encode.readers.csv_parsers import guess_charset
from batch_pipeline.encode.readers.decoded_file import open_source
from batch_pipeline.encode.validation import ChunkValidator
from batch_pipeline.encode.validation.type_inference import SchemaProfile
from batch_pipeline.model.errors import BadFileError
from batch_pipeline.model.item import LandedFile
from batch_pipeline.model.schema import Column, RecordSchema
from batch_pipeline.model.stream import SourceFormat, Stream

_START_BYTES = 64 * 2**10


@dataclass(frozen=True, slots=True, kw_only=True)
class FileStart:
    """The first bytes of a file, decompressed, and their detected format and charset.

    `text` is UTF-8, empty for a binary format; `is_whole` states that it is the whole file.
    """

    format: SourceFormat
    text: bytes = b""
    charset: str = "utf-8"
    is_whole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The columns and counts of the first records of some files.

    `first_bad` holds file, line and reason of the first malformed record; `unread` holds the errors
    of files that cannot be read at all.
    """

    files: int = 0
    records: int = 0
    columns: tuple[Column, ...] = ()
    bad: int = 0
    first_bad: tuple[str, int, str] | None = None
    unread: tuple[BadFileError, ...] = ()


def read_start(file: LandedFile, stream: Stream) -> FileStart:
    """Return the start of a file.

    Raises:
        BadFileError: the file cannot be opened or decompressed, or has an unsupported format.
        SourceUnavailableError: the store of the file cannot be reached.
    """
    with open_source(file, stream) as source:
        if source.reader.magic:
            return FileStart(format=source.format)
        text = source.read(_START_BYTES)
        if b"\0" in text:
            raise source.bad_file("contains zero bytes, so it is not text")
        is_whole = len(text) < _START_BYTES
    charset = guess_charset(text)
    return FileStart(format=source.format, text=text, charset=charset, is_whole=is_whole)


def read_sample(files: Sequence[LandedFile], stream: Stream, *, most_records: int) -> Sample:
    """Read up to about `most_records` records from all files together.

    Whole chunks are read, so the count may be exceeded. The first file must be readable.

    Raises:
        BadFileError: the first file is not readable.
        SourceUnavailableError: a store cannot be reached.
    """
    profile = SchemaProfile(RecordSchema())
    validator = ChunkValidator(profile, stream)
    sample = Sample()
    for number, file in enumerate(files, start=1):
        most = most_records * number // len(files)
        try:
            with open_source(file, stream) as source:
                sample = replace(sample, files=sample.files + 1)
                for chunk in source.reader.chunks(source, stream):
                    sample = _with_chunk(sample, file, validator.validate(chunk))
                    if sample.records + sample.bad >= most:
                        break
        except BadFileError as error:
            if number == 1:
                raise
            sample = replace(sample, unread=(*sample.unread, error))
    return replace(sample, columns=tuple(profile.columns.values()))


def _with_chunk(sample: Sample, file: LandedFile, checked: Chunk) -> Sample:
    first = sample.first_bad
    if checked.bad and first is None:
        first = (file.location, checked.bad[0].line, checked.bad[0].reason)
    records, bad = sample.records + checked.good, sample.bad + len(checked.bad)
    return replace(sample, records=records, bad=bad, first_bad=first)
