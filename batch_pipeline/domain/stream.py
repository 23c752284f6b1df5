"""What a stream file describes, as checked values."""

import re
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum

from batch_pipeline.domain.arrivals import Arrivals
from batch_pipeline.domain.ceiling import Strategy
from batch_pipeline.domain.dagster_rules import DagsterRules
from batch_pipeline.domain.encoding import Encoding
from batch_pipeline.domain.errors import InvalidValueError
from batch_pipeline.domain.filter import Filter
from batch_pipeline.domain.id_range import MAX_ID
from batch_pipeline.domain.planning import Limits
from batch_pipeline.domain.record_rules import (
    BadFileRules,
    BadRecordRules,
    LineageColumn,
    OnNonfinite,
    ReadLimits,
    RecordMapping,
    SchemaRules,
)
from batch_pipeline.domain.roots import Roots
from batch_pipeline.domain.target import PostgresTarget, Target, WriteMode

STREAM_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


class SourceFormat(StrEnum):
    """What landed files contain; `auto` decides per file by its first bytes."""

    AUTO = "auto"
    CSV = "csv"
    JSONL = "jsonl"
    JSON = "json"
    PARQUET = "parquet"
    AVRO = "avro"


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvOptions:
    """How csv files of a stream are written: one-character delimiter, quote and escape.

    Without an escape a quote inside of a cell is doubled. `names` are the columns of files whose
    first record is data; where they are empty the first record is the header.
    `is_delimiter_given` states that the stream file names the delimiter: then a header that looks
    as if it had another one is taken as it is.
    """

    delimiter: str = ","
    is_delimiter_given: bool = False
    quote: str = '"'
    escape: str | None = None
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        given = {"delimiter": self.delimiter, "quote": self.quote}
        if self.escape is not None:
            given["escape"] = self.escape
        for name, value in given.items():
            if len(value) != 1 or ord(value) > 127 or value in "\r\n\0":
                raise InvalidValueError(f"source.options.{name}", value, "one ASCII character")
        if self.delimiter == self.quote:
            raise InvalidValueError(
                "source.options.quote", self.quote, "another than the delimiter"
            )
        if self.escape in {self.delimiter, self.quote}:
            expected = "another than delimiter and quote"
            raise InvalidValueError("source.options.escape", self.escape, expected)
        if len(set(self.names)) < len(self.names) or "" in self.names:
            raise InvalidValueError("source.options.names", list(self.names), "names, each once")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFiles:
    """How the files of a stream are read; the two kinds of source say where they are.

    `charset` is that of csv and JSON files, a name that Python knows. Files are read `within`
    these roots, which each kind sets itself: they go where the files are opened, also as values.
    """

    format: SourceFormat = SourceFormat.AUTO
    csv: CsvOptions = field(default_factory=CsvOptions)
    charset: str = "utf-8"
    within: Roots = field(default_factory=Roots)

    @property
    def place(self) -> str:
        """What people call the place that the files come from."""
        raise NotImplementedError  # pragma: no cover - each kind has its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Source(SourceFiles):
    """Where files land: URI of a folder, or of a prefix of keys, and name patterns (fnmatch).

    Links in the folder may lead to what is below it, or below one of `roots`. Files of more than
    `max_item_bytes` become several items; None: every file is one.
    """

    uri: str
    roots: tuple[str, ...] = ()
    include: tuple[str, ...] = ("*",)
    exclude: tuple[str, ...] = ()
    arrivals: Arrivals = field(default_factory=Arrivals)
    max_item_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.max_item_bytes is not None and self.max_item_bytes < 1:
            raise InvalidValueError("source.max_item_size", self.max_item_bytes, "1 byte or more")
        within = Roots(uris=(self.uri, *self.roots), key="source.roots", closed=False)
        object.__setattr__(self, "within", within)

    @property
    def place(self) -> str:
        """The landing folder."""
        return self.uri


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSource(SourceFiles):
    """The user's own meta table, one row a file: where it is, and which columns play the roles.

    Files lie below `roots`, URIs of folders and of prefixes of keys; what a row says of others is
    refused. `conn` is `$NAME` of an environment variable with a database URL, a URL without a
    password, or None for the database of all meta tables. `imported` is the column of insert times;
    `ceiling` is picked where it is None. Without a weight column every item weighs 0.

    Raises:
        InvalidValueError: values do not go together.
    """

    table: str
    roots: tuple[str, ...] = ()
    conn: str | None = None
    uid: str = "uid"
    item: str = "item"
    weight: str | None = "weight"
    where: Filter | None = None
    imported: str | None = None
    ceiling: Strategy | None = None
    settle: timedelta | None = None
    on_bad_weight: int | None = None

    def __post_init__(self) -> None:
        key = "source.meta_table"
        object.__setattr__(self, "within", Roots(uris=self.roots, key=f"{key}.roots"))
        if self.settle is not None and self.settle <= timedelta(0):
            raise InvalidValueError(f"{key}.settle", str(self.settle), "more than 0 s")
        if self.settle is not None and self.imported is None:
            expected = f"none without `{key}.imported`, the column of insert times"
            raise InvalidValueError(f"{key}.settle", str(self.settle), expected)
        if self.ceiling is Strategy.SETTLE and self.imported is None:
            expected = f"another one, or `{key}.imported`, the column of insert times"
            raise InvalidValueError(f"{key}.ceiling", self.ceiling, expected)
        if self.on_bad_weight is not None and not 0 <= self.on_bad_weight <= MAX_ID:
            expected = "a whole number from 0 to 2^63 - 1"
            raise InvalidValueError(f"{key}.on_bad_weight", self.on_bad_weight, expected)

    @property
    def place(self) -> str:
        """The name of the table."""
        return self.table


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """Where part files go: `root` is an absolute URI, `prefix` starts every file name.

    `keep_superseded` is how long files of a generation stay once a newer one is published,
    `keep_loaded` how long once all targets of the stream have it; None keeps them for ever.
    `keep_quarantine` is how long quarantine files stay while their generation does; None keeps them
    as long.

    Raises:
        InvalidValueError: values do not go together.
    """

    root: str
    prefix: str = ""
    keep_superseded: timedelta | None = None
    keep_loaded: timedelta | None = None
    keep_quarantine: timedelta | None = None

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

    `alias` and `mapped_keys` are name and key properties after the mapping, None where it leaves
    them as they are.

    Raises:
        InvalidValueError: the name would not be safe in a file name or a partition key.
    """

    name: str
    source: SourceFiles
    limits: Limits
    encoding: Encoding
    storage: Storage
    key_properties: tuple[str, ...] = ()
    schema: SchemaRules = field(default_factory=SchemaRules)
    on_bad_record: BadRecordRules = field(default_factory=BadRecordRules)
    on_bad_file: BadFileRules = field(default_factory=BadFileRules)
    on_nonfinite: OnNonfinite = OnNonfinite.QUARANTINE
    mapping: RecordMapping = field(default_factory=RecordMapping)
    transform: str | None = None
    lineage: tuple[LineageColumn, ...] = ()
    read_limits: ReadLimits = field(default_factory=ReadLimits)
    part_limits: PartLimits = field(default_factory=PartLimits)
    dagster: DagsterRules = field(default_factory=DagsterRules)
    alias: str | None = None
    mapped_keys: tuple[str, ...] | None = None
    targets: tuple[Target, ...] = ()

    def __post_init__(self) -> None:
        if not STREAM_NAME.fullmatch(self.name):
            raise InvalidValueError("stream", self.name, f"to match {STREAM_NAME.pattern}")
        if len(set(self.lineage)) < len(self.lineage):
            shown = [name.value for name in self.lineage]
            raise InvalidValueError("lineage", shown, "names, each once")
        if self.max_item_bytes is not None and LineageColumn.RECORD_NUMBER in self.lineage:
            expected = "none beside `lineage: [_record_number]`, which counts from a file's start"
            raise InvalidValueError("source.max_item_size", self.max_item_bytes, expected)
        table = self.user_table
        if table is not None and table.imported is None and self.limits.min_weight:
            expected = "0 without `source.meta_table.imported`, which tells how long a row waits"
            raise InvalidValueError("batch.min_weight", self.limits.min_weight, expected)
        if self.storage.keep_loaded is not None and not self.targets:
            expected = "none without `targets`, which say when a batch is loaded"
            raise InvalidValueError("storage.keep_loaded", str(self.storage.keep_loaded), expected)
        for target in self.targets:
            is_upsert = isinstance(target, PostgresTarget) and target.mode is WriteMode.UPSERT
            if is_upsert and not self.message_keys:
                expected = "append, or `key_properties`, by which records are told apart"
                raise InvalidValueError(f"targets.{target.name}.postgres.mode", "upsert", expected)

    @property
    def message_name(self) -> str:
        """The name of the stream in messages."""
        return self.alias or self.name

    @property
    def message_keys(self) -> tuple[str, ...]:
        """The key properties of the records that are written."""
        return self.key_properties if self.mapped_keys is None else self.mapped_keys

    @property
    def max_item_bytes(self) -> int | None:
        """The size above which a landed file becomes several items; None where it never does."""
        return self.source.max_item_bytes if isinstance(self.source, Source) else None

    @property
    def user_table(self) -> TableSource | None:
        """The user's table whose rows are the items; None where files are registered here."""
        return self.source if isinstance(self.source, TableSource) else None
