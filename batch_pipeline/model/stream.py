"""Streams: source, limits, encoding, storage, rules and targets of one sequence of records.

`Stream` is the validated content of a stream file. Its source is `Source` (files in a landing) or
`TableSource` (a user's own meta table). Values that contradict each other are rejected at
construction. `check_cron` accepts the schedules that all schedulers interpret alike.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from batch_pipeline.model.encoding import Encoding
from batch_pipeline.model.errors import InvalidValueError, require
from batch_pipeline.model.filter import Filter
from batch_pipeline.model.load import TARGET_NAME, PostgresTarget, Target, WriteMode
from batch_pipeline.model.location import Roots
from batch_pipeline.model.planning import Limits
from batch_pipeline.model.record_rules import (
    BadFileRules,
    BadRecordRules,
    LineageColumn,
    OnNonfinite,
    ReadLimits,
    RecordMapping,
    SchemaRules,
)

RELIST = timedelta(hours=1)


def identifier_of(name: str) -> str:
    """Return the name of a stream with the characters that Dagster allows in names."""
    return re.sub(r"[^A-Za-z0-9_]", "_", name)


class KeyOrder(StrEnum):
    """Order of the keys of arriving objects."""

    ANY = "any"
    ASCENDING = "ascending"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """Detection of new files by a poll of a landing.

    With `ascending` keys, a poll lists the keys after the highest known key; with a `queue`, the
    URL of an SQS queue, it reads events. In both cases everything is listed once per `relist`
    (None: the default). Otherwise every poll lists everything.

    Raises:
        InvalidValueError: the values contradict each other.
    """

    order: KeyOrder = KeyOrder.ANY
    queue: str | None = None
    relist: timedelta | None = None

    def __post_init__(self) -> None:
        key, relist = "source.listing.relist", self.relist
        expected = "none without `order: ascending` or `source.events`: every poll lists all keys"
        require(relist is None or not self._lists_always, key, str(relist), expected)
        require(relist is None or relist > timedelta(0), key, str(relist), "more than 0 s")
        expected = "none with `source.events`, which report new files"
        fits = self.queue is None or self.order is KeyOrder.ANY
        require(fits, "source.listing.order", self.order, expected)

    @property
    def relist_every(self) -> timedelta | None:
        """Return the interval of full listings, None if every poll lists everything."""
        return None if self._lists_always else self.relist or RELIST

    @property
    def _lists_always(self) -> bool:
        return self.order is KeyOrder.ANY and self.queue is None


class Strategy(StrEnum):
    """Strategies to determine the high watermark of a meta table."""

    LOCKS = "locks"  # Postgres: lock holders at the time the highest id was read
    LOCKING_READ = "locking_read"  # MySQL, MariaDB: a locking read waits for open inserts
    SQLITE = "sqlite"  # single writer: the highest id
    REGISTRAR = "registrar"  # ids are assigned in commit order: the highest id
    SETTLE = "settle"  # rows younger than a delay are ignored


STREAM_NAME = TARGET_NAME  # stream files check both alike


def checked_name(stream: str) -> str:
    """Return the name of a stream.

    Raises:
        InvalidValueError: it does not match the pattern.
    """
    require(STREAM_NAME.fullmatch(stream), "stream", stream, f"to match {STREAM_NAME.pattern}")
    return stream


class SourceFormat(StrEnum):
    """Formats of landed files; `auto` detects the format of each file by its first bytes."""

    AUTO = "auto"
    CSV = "csv"
    JSONL = "jsonl"
    JSON = "json"
    PARQUET = "parquet"
    AVRO = "avro"


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvOptions:
    """Dialect of the csv files of a stream: one-character delimiter, quote and escape.

    Without an escape, a quote inside a cell is doubled. `names` are the columns of files without a
    header; if empty, the first record is the header. `is_delimiter_given` states that the stream
    file sets the delimiter, which turns off the check for headers with another delimiter.
    """

    delimiter: str = ","
    is_delimiter_given: bool = False
    quote: str = '"'
    escape: str | None = None
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        key = "source.options"
        for name in ("delimiter", "quote", "escape"):
            value = getattr(self, name)
            fits = value is None or (len(value) == 1 and value.isascii() and value not in "\r\n\0")
            require(fits, f"{key}.{name}", value, "one ASCII character")
        fits = self.delimiter != self.quote
        require(fits, f"{key}.quote", self.quote, "a character other than the delimiter")
        fits = self.escape not in {self.delimiter, self.quote}
        require(fits, f"{key}.escape", self.escape, "a character other than delimiter and quote")
        fits = len(set(self.names)) == len(self.names) and "" not in self.names
        require(fits, f"{key}.names", list(self.names), "names, each once")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFiles:
    """Reading options for the files of a stream; subclasses add their location.

    `charset` is the Python name of the encoding of csv and JSON files. `within` are the roots that
    files may be read from; each subclass sets them, and they are sent to the tasks that read.
    """

    format: SourceFormat = SourceFormat.AUTO
    csv: CsvOptions = field(default_factory=CsvOptions)
    charset: str = "utf-8"
    within: Roots = field(default_factory=Roots)

    @property
    def place(self) -> str:
        """Return the name of the source for people."""
        raise NotImplementedError  # pragma: no cover - each kind has its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Source(SourceFiles):
    """Landing of files: URI of a folder or key prefix, and name patterns (fnmatch).

    Symbolic links may point below the folder or below one of `roots`. Files larger than
    `max_item_bytes` become several items; None: every file is one item.
    """

    uri: str
    roots: tuple[str, ...] = ()
    include: tuple[str, ...] = ("*",)
    exclude: tuple[str, ...] = ()
    arrivals: Arrivals = field(default_factory=Arrivals)
    max_item_bytes: int | None = None

    def __post_init__(self) -> None:
        within = Roots(uris=(self.uri, *self.roots), key="source.roots", closed=False)
        object.__setattr__(self, "within", within)

    @property
    def place(self) -> str:
        """Return the URI of the landing."""
        return self.uri


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSource(SourceFiles):
    """Meta table of the user, one row per file: its database and column roles.

    Files must be below `roots`, URIs of folders and key prefixes; others are rejected. `conn` is
    `$NAME` of an environment variable with a database URL, a URL without a password, or None for
    the default database of meta tables. `imported` is the column of insert times. `ceiling` is the
    strategy for the high watermark, None to choose it. Without a weight column every item weighs 0.

    Raises:
        InvalidValueError: the values contradict each other.
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
        settle, has_times = self.settle, self.imported is not None
        fits = settle is None or settle > timedelta(0)
        require(fits, f"{key}.settle", str(settle), "more than 0 s")
        expected = f"none without `{key}.imported`, the column of insert times"
        require(settle is None or has_times, f"{key}.settle", str(settle), expected)
        expected = f"another one, or `{key}.imported`, the column of insert times"
        fits = self.ceiling is not Strategy.SETTLE or has_times
        require(fits, f"{key}.ceiling", self.ceiling, expected)

    @property
    def place(self) -> str:
        """Return the name of the table."""
        return self.table


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """Storage of part files: `root` is an absolute URI, `prefix` the prefix of every file name.

    `keep_superseded` is the retention of a generation's files after a newer one is published,
    `keep_loaded` after all targets of the stream have loaded it; None keeps them forever.
    `keep_quarantine` is a shorter retention of quarantine files; None keeps them as long as their
    generation.

    Raises:
        InvalidValueError: the prefix is not safe in a file name.
    """

    root: str
    prefix: str = ""
    keep_superseded: timedelta | None = None
    keep_loaded: timedelta | None = None
    keep_quarantine: timedelta | None = None

    def __post_init__(self) -> None:
        fits = not self.prefix or STREAM_NAME.fullmatch(self.prefix)
        require(fits, "storage.prefix", self.prefix, f"to match {STREAM_NAME.pattern}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartLimits:
    """Size limits of a part file; `max_bytes` counts uncompressed bytes."""

    max_records: int = 100_000
    max_bytes: int = 128 * 2**20


_ADDRESS = r"[A-Za-z0-9_][A-Za-z0-9._%+-]*@[A-Za-z0-9.-]+\.[A-Za-z]{2,7}"
_OWNER = re.compile(rf"team:[A-Za-z0-9_.-]+|{_ADDRESS}")
_TAG = re.compile(r"([A-Za-z0-9_.-]{1,63}/)?[A-Za-z0-9_.-]{1,63}")
_TAG_VALUE = re.compile(r"[A-Za-z0-9_.-]{0,63}")
_GROUP = re.compile(r"[A-Za-z0-9_]+")
_NAMES = (
    ("group", _GROUP, "letters, digits and '_'"),
    ("pool", re.compile(r"\S+"), "a name without spaces"),
    ("spark_resource", _GROUP, "the key of a resource: letters, digits and '_'"),
)


class Automation(StrEnum):
    """Default status of sensors and schedules."""

    RUNNING = "running"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class DagsterRules:
    """Values of the `dagster` section of a stream file.

    `automation` is None if the code location decides. `spark_resource` is the key of the project's
    own resource with a Spark session. With `backfills` the stream has an asset for the batches of
    its backfills.
    `partitions_per_run` is the number of batches per run, `runs_at_once` the number of runs that
    sensors keep queued or running. `schedule` is the cron schedule of polls, in `timezone`; without
    it the landing is polled continuously. `pool` is the Dagster pool that limits the runs.
    `max_backlog_age` of the oldest item and `max_quarantined_ratio` of records are the thresholds
    of the checks.

    Raises:
        InvalidValueError: Dagster would reject a value.
    """

    automation: Automation | None = None
    backfills: bool = False
    spark_resource: str | None = None
    partitions_per_run: int = 50
    runs_at_once: int = 10
    group: str | None = None
    owners: tuple[str, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    schedule: str | None = None
    timezone: str = "UTC"
    pool: str | None = None
    max_backlog_age: timedelta = timedelta(hours=1)
    max_quarantined_ratio: float = 0.0

    def __post_init__(self) -> None:
        for name, pattern, expected in _NAMES:
            value = getattr(self, name)
            require(value is None or pattern.fullmatch(value), f"dagster.{name}", value, expected)
        ratio = self.max_quarantined_ratio
        require(0 <= ratio <= 1, "dagster.max_quarantined_ratio", ratio, "0 to 1")
        for owner in self.owners:
            expected = "an e-mail address or team:name"
            require(_OWNER.fullmatch(owner), "dagster.owners", owner, expected)
        for tag, value in self.tags.items():
            fits = _TAG.fullmatch(tag) and _TAG_VALUE.fullmatch(value)
            expected = "letters, digits, '_', '.' and '-', at most 63 in the name and the value"
            require(fits, "dagster.tags", f"{tag}: {value}", expected)
        if self.schedule is not None:
            check_cron(self.schedule, name="dagster.schedule")
        try:
            ZoneInfo(self.timezone)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:  # OSError: a folder
            expected = "a name of the tz database, for example Europe/Berlin"
            raise InvalidValueError("dagster.timezone", self.timezone, expected) from error


_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FIELDS: tuple[tuple[str, int, int, dict[str, int]], ...] = (
    ("minute", 0, 59, {}),
    ("hour", 0, 23, {}),
    ("day of the month", 1, 31, {}),
    ("month", 1, 12, {name: number for number, name in enumerate(_MONTHS, start=1)}),
    ("day of the week", 0, 6, {name: number for number, name in enumerate(_WEEKDAYS)}),
)
_PART = re.compile(r"(?:\*|(?P<first>[0-9a-z]+)(?:-(?P<last>[0-9a-z]+))?)(?:/(?P<step>[0-9]+))?")
_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def check_cron(line: str, *, name: str) -> None:
    """Check that a cron schedule is valid and fires at some time.

    Raises:
        InvalidValueError: the line is not valid or never fires; the message names the field.
    """
    texts = line.lower().split()
    expected = "a cron schedule of five fields, for example 0 6 * * *"
    require(len(texts) == len(_FIELDS), name, line, expected)
    values = []
    for (cron_field, lowest, highest, names), text in zip(_FIELDS, texts, strict=True):
        parts = [_values(part, lowest, highest, names) for part in text.split(",")]
        expected = f"a cron schedule whose {cron_field}, {text!r}, is within {lowest} to {highest}"
        require(all(parts), name, line, expected)
        values.append(set().union(*parts))
    _, _, days, months, _ = values
    fires = any(min(days) <= _DAYS[month - 1] for month in months)
    require(fires, name, line, "a cron schedule with a day that its months have")


def _values(part: str, lowest: int, highest: int, names: dict[str, int]) -> set[int]:
    """Return the values of a part of a field, empty if it or its step is out of range."""
    match = _PART.fullmatch(part)
    if match is None:
        return set()
    first, last, step = match["first"], match["last"], int(match["step"] or 1)
    if match["step"] and first and not last:
        return set()  # `5/10` means different things to different schedulers
    start = lowest if first is None else _number(first, names)
    end = highest if first is None else start if last is None else _number(last, names)
    # A range from 0 to 0 has no valid step.
    is_step = 1 <= step <= (highest - lowest if last is None else end)
    if not is_step or not lowest <= start <= end <= highest:
        return set()
    return set(range(start, end + 1, step))


def _number(text: str, names: dict[str, int]) -> int:
    return int(text) if text.isdecimal() else names.get(text, -1)


_FUNCTION = re.compile(r"[^:]+:[^\W\d]\w*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Named sequence of records, with the settings of every step from landing to load.

    `alias` and `mapped_keys` are the name and key properties after the mapping, None if unchanged.

    Raises:
        InvalidValueError: the name is not safe in file names, or settings contradict each other.
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
        checked_name(self.name)
        shown = [name.value for name in self.lineage]
        require(len({*shown}) == len(shown), "lineage", shown, "names, each once")
        names_function = self.transform is None or _FUNCTION.fullmatch(self.transform)
        require(names_function, "transform", self.transform, "`package.module:function`")
        has_numbers = LineageColumn.RECORD_NUMBER in self.lineage
        fits = self.max_item_bytes is None or not has_numbers
        expected = "none with `lineage: [_record_number]`, which counts from a file's start"
        require(fits, "source.max_item_size", self.max_item_bytes, expected)
        table, least = self.user_table, self.limits.min_weight
        fits = table is None or table.imported is not None or not least
        expected = "0 without `source.meta_table.imported`, the column of insert times"
        require(fits, "batch.min_weight", least, expected)
        keep = self.storage.keep_loaded
        expected = "none without `targets`, which define when a batch is loaded"
        require(keep is None or self.targets, "storage.keep_loaded", str(keep), expected)
        for target in self.targets:
            is_upsert = isinstance(target, PostgresTarget) and target.mode is WriteMode.UPSERT
            name = f"targets.{target.name}.postgres.mode"
            expected = "append, or `key_properties`, which identify records"
            require(self.message_keys or not is_upsert, name, "upsert", expected)

    @property
    def identifier(self) -> str:
        """Return the name with the characters that Dagster allows in names."""
        return identifier_of(self.name)

    @property
    def message_name(self) -> str:
        """Return the name of the stream in Singer messages."""
        return self.alias or self.name

    @property
    def message_keys(self) -> tuple[str, ...]:
        """Return the key properties of the written records."""
        return self.key_properties if self.mapped_keys is None else self.mapped_keys

    @property
    def max_item_bytes(self) -> int | None:
        """Return the size above which a landed file becomes several items, None if unlimited."""
        return self.source.max_item_bytes if isinstance(self.source, Source) else None

    @property
    def user_table(self) -> TableSource | None:
        """Return the user's table whose rows are the items, None if files are registered."""
        return self.source if isinstance(self.source, TableSource) else None


_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]+")


def stream_name_of(text: str) -> str | None:
    """Return a stream name derived from a text, None if it has no usable character."""
    name = _NOT_IN_NAMES.sub("_", text).strip(".-").rstrip("_.-")[:100]
    return name if STREAM_NAME.fullmatch(name) else None
