"""What a stream file describes, as checked values."""

import re
from dataclasses import dataclass, field
from enum import StrEnum

from batch_pipeline.domain.encoding import Encoding
from batch_pipeline.domain.errors import InvalidValueError
from batch_pipeline.domain.planning import Limits

STREAM_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


class SourceFormat(StrEnum):
    """What landed files contain; `auto` decides per file by its first bytes."""

    AUTO = "auto"
    CSV = "csv"
    JSONL = "jsonl"


class OnBadFile(StrEnum):
    """What becomes of a batch with a file that cannot be read at all."""

    FAIL = "fail"
    QUARANTINE = "quarantine"


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvOptions:
    """How csv files of a stream are written: one-character delimiter and quote."""

    delimiter: str = ","
    quote: str = '"'

    def __post_init__(self) -> None:
        for name, value in (("delimiter", self.delimiter), ("quote", self.quote)):
            if len(value) != 1 or ord(value) > 127 or value in "\r\n\0":
                raise InvalidValueError(f"source.options.{name}", value, "one ASCII character")
        if self.delimiter == self.quote:
            raise InvalidValueError(
                "source.options.quote", self.quote, "another than the delimiter"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where files land: folder URI, name patterns (fnmatch), format."""

    uri: str
    include: tuple[str, ...] = ("*",)
    exclude: tuple[str, ...] = ()
    format: SourceFormat = SourceFormat.AUTO
    csv: CsvOptions = field(default_factory=CsvOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """Where part files go: `root` is an absolute URI, `prefix` starts every file name."""

    root: str
    prefix: str = ""

    def __post_init__(self) -> None:
        if self.prefix and not STREAM_NAME.fullmatch(self.prefix):
            raise InvalidValueError(
                "storage.prefix", self.prefix, f"to match {STREAM_NAME.pattern}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PartLimits:
    """Bounds of a part file; `max_bytes` counts uncompressed bytes."""

    max_records: int = 100_000
    max_bytes: int = 128 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """One named sequence of records with everything its stations need to know.

    Raises:
        InvalidValueError: the name would not be safe in a file name or a partition key.
    """

    name: str
    source: Source
    limits: Limits
    encoding: Encoding
    storage: Storage
    key_properties: tuple[str, ...] = ()
    max_bad_records: int = 0
    on_bad_file: OnBadFile = OnBadFile.FAIL
    part_limits: PartLimits = field(default_factory=PartLimits)
    partitions_per_run: int = 16

    def __post_init__(self) -> None:
        if not STREAM_NAME.fullmatch(self.name):
            raise InvalidValueError("stream", self.name, f"to match {STREAM_NAME.pattern}")
        if self.max_bad_records < 0:
            raise InvalidValueError("max_bad_records", self.max_bad_records, "zero or more")
        if self.partitions_per_run < 1:
            raise InvalidValueError("partitions_per_run", self.partitions_per_run, "at least 1")
