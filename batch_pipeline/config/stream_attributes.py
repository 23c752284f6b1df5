"""The keys of a stream file: their types, defaults and descriptions, and their conversion."""

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote, unquote

from pydantic import AfterValidator, BeforeValidator, Field

from batch_pipeline.config.attribute_types import (
    Command,
    Connection,
    Count,
    Duration,
    Location,
    QueueUrl,
    Section,
    Size,
    TargetConfig,
    Text,
    Variable,
    Where,
    absolute_uri,
    refusal,
    stream_name,
)
from batch_pipeline.model.batch import MAX_ID
from batch_pipeline.model.encoding import PART_FORMATS, Compression, Encoding, Format
from batch_pipeline.model.errors import InvalidValueError
from batch_pipeline.model.load import MessageMode, PostgresTarget, SingerTarget, WriteMode
from batch_pipeline.model.location import scheme_of
from batch_pipeline.model.planning import Limits
from batch_pipeline.model.record_rules import (
    BadFileRules,
    BadRecordRules,
    Evolution,
    LineageColumn,
    OnBadFile,
    OnNonfinite,
    ReadLimits,
    RecordMapping,
    SchemaRules,
)
from batch_pipeline.model.schema import schema_of
from batch_pipeline.model.stream import (
    Arrivals,
    Automation,
    CsvOptions,
    DagsterRules,
    KeyOrder,
    PartLimits,
    Source,
    SourceFiles,
    SourceFormat,
    Storage,
    Strategy,
    Stream,
    TableSource,
)
from batch_pipeline.storage.filesystem import filesystem_of

_KEY = "source.meta_table"
# After `file:` comes a path of a URI, which SQLite decodes again.
_SQLITE_FILE = re.compile(
    r"(sqlite(?:\+[a-z0-9_]+)?:///(?P<uri>file:(?=.*[?&]uri=))?+)([^/:?][^?]*)(.*)"
)
_SDC = tuple(column for column in LineageColumn if column.value.startswith("_sdc_"))


class TableAttributes(Section):
    """A meta table of your own: one row for each file, with an id that grows."""

    table: Text
    """Its name; another schema's table as `schema.table`."""
    roots: tuple[Location, ...] = ()
    """Folders and prefixes such as s3://bucket/prefix that contain its files, links resolved.
    Rows with other files are refused; `[/]` allows any on disks (default: none, which is
    refused)."""
    conn: Connection | None = None
    """$NAME of an environment variable with the URL of its database, or a URL without a password
    (default: BATCH_PIPELINE_META_CONN, else the inventory's)."""
    uid: Text = "uid"
    """Column of unique ids that are never reused (default uid)."""
    item: Text = "item"
    """Column of locations: absolute paths, file:///… or s3://… URIs (default item)."""
    weight: Text | None = "weight"
    """Column that batch limits count; null: every file weighs 0 (default weight)."""
    where: Where = None
    """Rows to read (default: all)."""
    imported: Text | None = None
    """Column of insertion times (default: none)."""
    ceiling: Strategy | None = None
    """How the high watermark is computed (default: the exact method of the database, else
    settle)."""
    settle: Duration | None = None
    """With settle: minimum age of a row (seconds, or with a unit; default: 15m)."""
    on_bad_weight: Annotated[int, Field(strict=True, ge=0, le=MAX_ID)] | None = None
    """Weight of rows whose weight is NULL, negative or not a number (default: they are refused)."""

    def check(self) -> None:
        if not self.roots:
            problem = (
                "is missing; expected the folders whose files rows may name, such as "
                '`roots: ["/data/exports"]`, or `roots: ["/"]` for every file of this machine'
            )
            raise refusal(problem, key=f"{_KEY}.roots")
        self.to_model(Path("/"))

    def to_model(self, base: Path, **read_as: Any) -> TableSource:
        """Return the model; a relative SQLite file is below `base`."""
        return self.to(
            TableSource,
            roots=tuple(absolute_uri(one, base) for one in self.roots),
            conn=None if self.conn is None else _with_base(self.conn, base),
            **read_as,
        )


def _with_base(conn: str, base: Path) -> str:
    match = _SQLITE_FILE.fullmatch(conn)
    if match is None:
        return conn
    folder = str(base.absolute())
    path = Path(quote(folder) if match["uri"] else folder) / unquote(match[3])
    return f"{match[1]}{quote(str(path))}{match[4]}"


_LEAST_ITEM = 64 * 2**10  # cost of opening and closing a file, in bytes read
_INSTEAD = {
    "uri": "use one of them",
    "roots": "use `source.meta_table.roots`",
    "listing": "rows are read as they come",
    "events": "rows are read as they come",
    "max_item_size": "use rows whose locations name ranges of bytes",
}


class OptionAttributes(Section):
    """How text files are written."""

    delimiter: str = ","
    """csv: delimiter, one ASCII character."""
    quote: str = '"'
    """csv: quote, one ASCII character."""
    escape: str | None = None
    """csv: escape character, one ASCII character (default: none, quotes are doubled)."""
    names: tuple[Text, ...] = ()
    """csv: column names of files without a header (default: the header)."""
    charset: str = "utf-8"
    """csv and JSON: a Python codec (default utf-8)."""

    def check(self) -> None:
        try:
            "".encode(self.charset)  # also refuses codecs that do not encode text
        except (LookupError, ValueError) as error:
            problem = f"is {self.charset!r:.80}; expected a Python codec"
            raise refusal(problem, key="source.options.charset") from error
        self.csv()

    def csv(self) -> CsvOptions:
        """Return the model of the csv options."""
        return CsvOptions(
            delimiter=self.delimiter,
            is_delimiter_given="delimiter" in self.model_fields_set,
            quote=self.quote,
            escape=self.escape,
            names=self.names,
        )


class ListingAttributes(Section):
    """How a bucket is listed."""

    order: KeyOrder = KeyOrder.ANY
    """any: each poll lists all keys; ascending: only those after the highest known (default
    any)."""
    relist: Duration | None = None
    """With ascending or events: period of listing all keys (seconds, or with a unit; default:
    1h)."""


class EventAttributes(Section):
    """Queue with a bucket's notifications of new objects."""

    queue: QueueUrl
    """URL of the SQS queue of the bucket's notifications, read by this stream only."""


class SourceAttributes(Section):
    """Where files land, or the table of your own that lists them, and how they are read."""

    uri: Location | None = None
    """Folder or s3://bucket/prefix where files land (default: none, then `meta_table` is
    needed)."""
    meta_table: TableAttributes | None = None
    """Instead of `uri`: a table of your own, one row per file."""
    roots: tuple[Location, ...] = ()
    """Folders outside of `uri` where links may lead (default: none)."""
    include: Annotated[tuple[Text, ...], Field(min_length=1)] = ("*",)
    """Patterns of file names (`*`, `?`, `[abc]`); with a slash, of paths below `uri`."""
    exclude: tuple[Text, ...] = ()
    """Patterns of file names to ignore (default: none)."""
    listing: ListingAttributes = ListingAttributes()
    """How a bucket is listed (default: all keys at each poll)."""
    events: EventAttributes | None = None
    """Notifications of new objects (default: listing)."""
    max_item_size: Annotated[Size, Field(ge=_LEAST_ITEM)] | None = None
    """Larger plain csv and jsonl files become several items, ranges of whole records (bytes, or
    with a unit; default: none)."""
    format: SourceFormat = SourceFormat.AUTO
    """Contents of the files; json is an array or concatenated objects; auto: detected per file
    (default auto)."""
    options: OptionAttributes = OptionAttributes()
    """How text files are written."""

    def check(self) -> None:
        if self.meta_table is None and self.uri is None:
            raise refusal("is missing; expected it, or `source.meta_table`", key="source.uri")
        if self.meta_table is None:
            self._arrivals()
            self._check_arrivals(absolute_uri(self.uri or ".", Path("/")))
            return
        for key in ("uri", "roots", "include", "exclude", "listing", "events", "max_item_size"):
            if key in self.model_fields_set:
                instead = _INSTEAD.get(key, "use `source.meta_table.where`")
                problem = f"cannot be combined with `source.meta_table`; {instead}"
                raise refusal(problem, key=f"source.{key}")

    def _check_arrivals(self, place: str) -> None:
        if self.roots and scheme_of(place) != "file":
            problem = "is for the links of a folder; omit it for a bucket, which has none"
            raise refusal(problem, key="source.roots")
        for key in ("listing", "events"):
            if key in self.model_fields_set and not filesystem_of(place).has_events:
                problem = "is for buckets only; omit it for a folder"
                raise refusal(problem, key=f"source.{key}")

    def to_model(self, base: Path) -> SourceFiles:
        """Return the model; relative paths are below `base`."""
        if self.meta_table is not None:
            return self.meta_table.to_model(base, **self._read_as())
        return Source(
            uri=absolute_uri(self.uri or ".", base),  # `check` has refused None
            roots=tuple(absolute_uri(one, base) for one in self.roots),
            include=self.include,
            exclude=self.exclude,
            arrivals=self._arrivals(),
            max_item_bytes=self.max_item_size,
            **self._read_as(),
        )

    def _arrivals(self) -> Arrivals:
        queue = None if self.events is None else self.events.queue
        return Arrivals(order=self.listing.order, relist=self.listing.relist, queue=queue)

    def _read_as(self) -> dict[str, Any]:
        return {"format": self.format, "csv": self.options.csv(), "charset": self.options.charset}


class SchemaAttributes(Section):
    """The columns of the records, and how they may change."""

    mode: Literal["infer", "declared"] | None = None
    """infer: from records; declared: by `file` (default: declared with `file`, else infer)."""
    file: Text | None = None
    """Path of a JSON Schema of a record, relative to the stream file."""
    evolution: Evolution = Evolution.ADD
    """If records do not fit: add columns and widen types, fail the batch, or rescue values into
    `_rescued_data` (default add)."""
    sample_records: Count | None = None
    """Records per task to infer columns from (default: 20,000 of a stream's first batch, then all).
    If other records do not fit, the batch is encoded again."""

    def check(self) -> None:
        if self.mode == "declared" and self.file is None:
            raise refusal("is missing; expected the path of a JSON Schema", key="schema.file")
        if self.mode == "infer" and self.file is not None:
            raise refusal("is infer; expected declared beside `schema.file`", key="schema.mode")

    def declared_json(self, base: Path) -> Any:
        """Return the content of the schema file, or None if no file is configured.

        Raises:
            InvalidValueError: it cannot be read.
        """
        if self.file is None:
            return None
        path = base / self.file
        try:
            return json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise InvalidValueError(
                "schema.file", str(path), f"a JSON Schema ({reason})"
            ) from error

    def to_model(self, declared_json: Any) -> SchemaRules:
        """Return the model; `declared_json` is the content of the schema file.

        Raises:
            InvalidValueError: it describes a column that is not possible.
        """
        declared = None if self.file is None else schema_of(declared_json)
        return SchemaRules(
            declared=declared, evolution=self.evolution, sample_records=self.sample_records
        )


class OnBadRecordAttributes(Section):
    """How many malformed records are quarantined before the batch fails."""

    max_bad_records: int | None = Field(None, strict=True, ge=0)
    """Maximum per batch (default: 0, or any number with `max_bad_ratio`)."""
    max_bad_ratio: float | None = Field(None, strict=True, ge=0, le=1)
    """Maximum share of the records of a batch."""


class OnBadFileAttributes(Section):
    """What to do with each kind of bad file: fail, skip or quarantine."""

    missing: OnBadFile = OnBadFile.FAIL
    """A file that is gone."""
    changed: OnBadFile = OnBadFile.FAIL
    """A file that differs from what was registered."""
    corrupt: OnBadFile = OnBadFile.FAIL
    """A file that cannot be read."""


OnBadFileValue = Annotated[
    OnBadFileAttributes,
    BeforeValidator(
        lambda value: (
            dict.fromkeys(OnBadFileAttributes.model_fields, value)
            if isinstance(value, str)
            else value
        ),
        json_schema_input_type=OnBadFile | OnBadFileAttributes,
    ),
]


LineageValue = Annotated[
    tuple[LineageColumn, ...],
    BeforeValidator(
        lambda value: (_SDC if value else ()) if isinstance(value, bool) else value,
        json_schema_input_type=bool | tuple[LineageColumn, ...],
    ),
]


class ReadLimitAttributes(Section):
    """What a task is willing to read."""

    max_record_bytes: Annotated[Size, Field(ge=1)] = 64 * 2**20
    """Maximum length of a record (bytes, or with a unit; default 64MiB)."""
    max_expansion: Count = 250
    """Maximum expansion ratio of a compressed file, checked from 64MiB on (default 250)."""
    max_columns: Count = 10_000
    """Maximum number of columns (default 10000)."""


class MappingAttributes(Section):
    """Selection, stream maps and flattening, with the names and meanings of the Singer SDK."""

    select: Annotated[tuple[Text, ...], Field(min_length=1)] = ("*",)
    """Patterns of properties; `!` deselects, the last match wins."""
    stream_maps: dict[str, Any] = Field({})
    """The Singer SDK's stream maps, by stream (default: none)."""
    stream_map_config: dict[str, Any] = Field({})
    """`config` in expressions of stream maps (default: none)."""
    flattening_enabled: bool = False
    """Flatten nested objects (default false)."""
    flattening_max_depth: Annotated[int, Field(strict=True, ge=0)] | None = None
    """Maximum number of levels (default: all)."""
    flattening_separator: Text = "__"
    """Separator of level names."""

    def mapping(self) -> RecordMapping:
        """Return the model."""
        return RecordMapping(
            **{name: getattr(self, name) for name in MappingAttributes.model_fields}
        )


def alternatives(words: Iterable[str]) -> str:
    """Return words as text, such as `a, b or c`."""
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last


_TITLES = alternatives(part_format.title for part_format in PART_FORMATS.values())
_COMPRESSIONS = "; ".join(
    f"of {file_format} {alternatives(part_format.compressions)}"
    for file_format, part_format in PART_FORMATS.items()
)


class EncodingAttributes(Section):
    """What BATCH files are; Singer's `batch_config.encoding`."""

    format: Format = Field(
        Format.JSONL, description=f"What a BATCH file is: {_TITLES} (default jsonl)."
    )
    compression: Compression | None = Field(
        None, description=f"O{_COMPRESSIONS[1:]} (default: the first of these)."
    )
    level: Annotated[int, Field(strict=True)] | None = None
    """gzip 0 to 9, zstd 1 to 19 (default: fast)."""

    def check(self) -> None:
        self.to_model()

    def to_model(self) -> Encoding:
        """Return the model."""
        compression = self.compression or PART_FORMATS[self.format].compressions[0]
        return self.to(Encoding, compression=compression)


class StorageAttributes(Section):
    """Where part files go; Singer's `batch_config.storage`."""

    root: Location = "./batches"
    """Folder or s3://bucket/prefix of part files (default ./batches)."""
    prefix: str = ""
    """Prefix of file names (default: none)."""
    keep_superseded: Duration | None = None
    """How long replaced generations are kept, at least 24h (seconds, or with a unit such as 30d;
    default: forever)."""
    keep_loaded: Duration | None = None
    """How long generations are kept after all `targets` loaded them, at least 24h (seconds, or with
    a unit such as 30d; default: forever)."""
    keep_quarantine: Duration | None = None
    """How long quarantine files are kept after publishing, at least 24h (seconds, or with a unit
    such as 90d; default: as their generation)."""

    def check(self) -> None:
        self.to_model(Path("/"))

    def to_model(self, base: Path) -> Storage:
        """Return the model; relative paths are below `base`."""
        return self.to(Storage, root=absolute_uri(self.root, base))


class PartFilesAttributes(Section):
    """Bounds of one part file."""

    max_records: Count = 100_000
    """Maximum number of records (default 100000)."""
    max_bytes: Annotated[Size, Field(ge=1)] = 128 * 2**20
    """Maximum uncompressed size (bytes, or with a unit; default 128MiB)."""


class BatchAttributes(Section):
    """Bounds of a batch."""

    max_weight: Size = 64 * 2**20
    """Maximum size of its files; a larger file is a batch of its own (bytes, or with a unit;
    default 64MiB)."""
    max_count: Count = 1_000
    """Maximum number of files (default 1000)."""
    max_wait: Duration = timedelta(minutes=5)
    """Age of the oldest file at which a batch below `min_weight` is planned (seconds, or with a
    unit; default 5m)."""
    min_weight: Size = 0
    """A last batch below this size waits for more files (bytes, or with a unit; default 0)."""

    def check(self) -> None:
        self.to(Limits)


class DagsterAttributes(Section):
    """How Dagster runs the stream."""

    automation: Automation | None = None
    """Default status of sensors and schedules (default: running in `batch-pipeline dev` and
    `batch_pipeline.definitions`, else stopped)."""
    backfills: bool = False
    """Define an asset for batches of backfills (default false)."""
    spark_resource: Text | None = None
    """Key of a resource with a `spark_session`, such as a `PySparkResource` (default: a session of
    our own)."""
    partitions_per_run: Count = 50
    """Maximum number of batches per run (default 50)."""
    runs_at_once: Count = 10
    """Maximum number of runs that sensors keep queued or running (default 10)."""
    group: Text | None = None
    """Asset group (default: the name of the stream)."""
    owners: tuple[Text, ...] = ()
    """E-mail addresses or `team:name` (default: none)."""
    tags: dict[Text, str] = Field({})
    """Tags of the assets (default: none)."""
    schedule: Text | None = None
    """Cron schedule of polls (default: continuous polling)."""
    timezone: Text = "UTC"
    """Time zone of the schedule (default UTC)."""
    pool: Text | None = None
    """Dagster pool of the runs (default: one of its own)."""
    max_backlog_age: Duration = timedelta(hours=1)
    """Age of a waiting file above which the check fails (seconds, or with a unit; default 1h)."""
    max_quarantined_ratio: float = 0.0
    """Share of quarantined records, 0 to 1, above which the check fails."""

    def check(self) -> None:
        self.to(DagsterRules)


class PostgresTargetAttributes(Section):
    """A table that batches are copied into."""

    conn: Variable
    """$NAME of an environment variable with the URL of the database."""
    schema_: Text = Field("public", alias="schema")
    """Its schema (default public)."""
    table: Text | None = None
    """Its name (default: the stream's name in messages)."""
    mode: WriteMode = WriteMode.APPEND
    """append, or upsert: keep the newest record of each key (default append)."""


class TargetAttributes(Section):
    """One target: a Postgres table, or any Singer target."""

    postgres: PostgresTargetAttributes | None = None
    """A Postgres table, loaded by COPY."""
    command: Command | None = None
    """Instead of `postgres`: command line of a Singer target."""
    config: TargetConfig | None = None
    """Its configuration; $NAME is taken from the environment."""
    messages: MessageMode | None = None
    """Kind of messages; auto: BATCH if the target reads such files (default: auto)."""
    timeout: Duration | None = None
    """How long it may be idle before it is stopped (seconds, or with a unit; default: 30m)."""

    def check(self) -> None:
        if (self.postgres is None) == (self.command is None):
            raise refusal("needs either `postgres` or `command`")
        if self.postgres is not None:
            for name in ("config", "messages", "timeout"):
                if getattr(self, name) is not None:
                    raise refusal(f"has `{name}`, which goes with `command` only")
        if self.timeout is not None and self.timeout <= timedelta(0):
            raise refusal("has a `timeout` of 0 s; expected more")

    def to_model(self, name: str) -> PostgresTarget | SingerTarget:
        """Return the model."""
        if self.postgres is not None:
            return self.postgres.to(PostgresTarget, name=name)
        given = {key: value for key, value in self if value is not None}
        return SingerTarget(name=name, **given)


class StreamAttributes(MappingAttributes):
    """One stream: where its files land, how they are cut into batches, what is written where."""

    stream: Annotated[str, AfterValidator(stream_name)]
    """Name of the stream; under another name all files are new."""
    source: SourceAttributes
    """Where files land and how they are read."""
    batch: BatchAttributes = BatchAttributes()
    """Limits of a batch."""
    key_properties: tuple[Text, ...] = ()
    """Columns that identify a record (default: none)."""
    encoding: EncodingAttributes = EncodingAttributes()
    """Format of part files (default: jsonl with gzip)."""
    storage: StorageAttributes = StorageAttributes()
    """Where part files go (default ./batches)."""
    schema_: SchemaAttributes = Field(SchemaAttributes(), alias="schema")
    """Columns, and how they may change (default: inferred)."""
    on_bad_record: OnBadRecordAttributes = OnBadRecordAttributes()
    """Malformed records to quarantine before the batch fails (default: none)."""
    on_bad_file: OnBadFileValue = OnBadFileAttributes()
    """What to do with unusable files: fail the batch, or skip or quarantine the file (default:
    fail)."""
    on_nonfinite: OnNonfinite = OnNonfinite.QUARANTINE
    """NaN and infinity in JSON: quarantine the record, or write null or a string (default
    quarantine)."""
    transform: Text | None = None
    """`package.module:function` that takes and returns a DataFrame (default: none)."""
    lineage: LineageValue = ()
    """Columns added to each record; true: `_sdc_…` (default: none)."""
    read_limits: ReadLimitAttributes = ReadLimitAttributes()
    """Limits of files that are read."""
    part_files: PartFilesAttributes = PartFilesAttributes()
    """Limits of part files."""
    dagster: DagsterAttributes = DagsterAttributes()
    """How Dagster runs the stream."""
    targets: dict[Annotated[str, AfterValidator(stream_name)], TargetAttributes] = Field({})
    """Destinations of published batches, by name (default: none)."""

    def check(self) -> None:
        if self.schema_.file is None:
            self.to_stream(Path("/"))  # else the schema file is read once its folder is known

    def to_stream(self, base: Path) -> Stream:
        """Return the stream; `base` is the folder of the stream file."""
        declared_json = self.schema_.declared_json(base)
        stream = Stream(
            name=self.stream,
            source=self.source.to_model(base),
            limits=self.batch.to(Limits),
            encoding=self.encoding.to_model(),
            storage=self.storage.to_model(base),
            key_properties=self.key_properties,
            schema=self.schema_.to_model(declared_json),
            on_bad_record=self.on_bad_record.to(BadRecordRules),
            on_bad_file=self.on_bad_file.to(BadFileRules),
            on_nonfinite=self.on_nonfinite,
            mapping=self.mapping(),
            transform=self.transform,
            lineage=self.lineage,
            read_limits=self.read_limits.to(ReadLimits),
            part_limits=self.part_files.to(PartLimits),
            dagster=self.dagster.to(DagsterRules),
            targets=tuple(one.to_model(name) for name, one in self.targets.items()),
        )
        return stream if stream.mapping.is_identity else _mapped(stream, declared_json)


def _mapped(stream: Stream, declared_json: Any) -> Stream:
    """Check the mapping, and return the stream with mapped name, keys and declared columns.

    Raises:
        InvalidValueError: the mapping is not valid.
    """
    from batch_pipeline.encode.mapping.mapper import Mapper  # loads Arrow

    mapper = Mapper.of(stream)
    if mapper is None:
        return stream
    keys = mapper.key_properties
    alias = None if mapper.alias == stream.name else mapper.alias
    mapped_keys = None if keys == stream.key_properties else keys
    stream = replace(stream, alias=alias, mapped_keys=mapped_keys)
    if declared_json is None:
        return stream
    mapped, objects = mapper.schema(declared_json)
    return replace(
        stream,
        schema=replace(stream.schema, declared=schema_of(mapped)),
        mapping=replace(stream.mapping, flat_objects=objects),
    )
