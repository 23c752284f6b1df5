"""The keys of `source.meta_table` in a stream file: the user's own table of files."""

import re
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from batch_pipeline.config.attribute_types import (
    Duration,
    Location,
    QueueUrl,
    Section,
    Size,
    Text,
    absolute_uri,
    domain_refusals,
    refusal,
    variable_in,
)
from batch_pipeline.model.filter import Filter, parse_filter
from batch_pipeline.model.id_range import MAX_ID
from batch_pipeline.model.location import scheme_of
from batch_pipeline.model.stream import (
    Arrivals,
    CsvOptions,
    KeyOrder,
    Source,
    SourceFiles,
    SourceFormat,
    Strategy,
    TableSource,
)
from batch_pipeline.storage.filesystem import filesystem_of

_KEY = "source.meta_table"
_URL = re.compile(r"[a-z][a-z0-9_]*(\+[a-z0-9_]+)?://.*")
_SQLITE_FILE = re.compile(r"(sqlite(?:\+[a-z0-9_]+)?:///)([^/:?][^?]*)(.*)")
_SECRETS = ("password", "passwd", "pwd", "passfile", "secret", "token")
_ADVICE = (
    "expected $NAME of an environment variable that holds the database URL, or a URL without a "
    "password"
)


def _connection(text: str) -> str:
    """Check where the database is; the text is never repeated, for it may hold a password."""
    variable = variable_in(text)
    if variable is not None:
        return variable
    if not _URL.fullmatch(text):
        raise refusal(f"is neither a variable nor a database URL; {_ADVICE}")
    try:
        parts = urlsplit(text)
        has_password = parts.password is not None
    except ValueError as error:
        raise refusal(f"is not a database URL; {_ADVICE}") from error
    asked = [name.lower() for name, _ in parse_qsl(parts.query, keep_blank_values=True)]
    if has_password or any(secret in name for name in asked for secret in _SECRETS):
        raise refusal(f"holds a password, which a stream file must not; {_ADVICE}")
    return text


def _filter(value: Any) -> Filter:
    with domain_refusals():
        return parse_filter(value, f"{_KEY}.where")


_TERMS = {"type": "array", "items": {"type": "object"}}
_FILTER_SCHEMA = {"anyOf": [_TERMS, {"type": "object"}, {"type": "null"}]}
Where = Annotated[Any, BeforeValidator(_filter), WithJsonSchema(_FILTER_SCHEMA)]


class TableAttributes(Section):
    """A meta table of your own: one row for each file, with an id that grows."""

    table: Text = Field(description="Its name; another schema's table as `schema.table`.")
    roots: tuple[Location, ...] = Field(
        (),
        description="Folders and prefixes such as s3://bucket/prefix below which its files are, "
        "links resolved. Rows with other files are refused; `[/]` allows any on disks (default: "
        "none, which is refused).",
    )
    conn: Annotated[Text, AfterValidator(_connection)] | None = Field(
        None,
        description="$NAME of an environment variable with the URL of its database, or a URL "
        "without a password (default: BATCH_PIPELINE_META_CONN, else the inventory's).",
    )
    uid: Text = Field(
        "uid", description="Column of unique ids that are never reused (default uid)."
    )
    item: Text = Field(
        "item",
        description="Column of locations: absolute paths, file:///… or s3://… URIs (default item).",
    )
    weight: Text | None = Field(
        "weight",
        description="Column that batch limits count; null: every file weighs 0 (default weight).",
    )
    where: Where = Field(None, description="Rows to read (default: all).")
    imported: Text | None = Field(None, description="Column of insertion times (default: none).")
    ceiling: Strategy | None = Field(
        None,
        description="How the high watermark is computed (default: the exact method of the "
        "database, else settle).",
    )
    settle: Duration | None = Field(
        None,
        description="With settle: minimum age of a row (seconds, or with a unit; default: 15m).",
    )
    on_bad_weight: Annotated[int, Field(strict=True, ge=0, le=MAX_ID)] | None = Field(
        None,
        description="Weight of rows whose weight is NULL, negative or not a number (default: they "
        "are refused).",
    )

    def check(self) -> None:
        if not self.roots:
            problem = (
                "is missing; expected the places below which rows may name files, such as "
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
    path = quote(str(base.absolute() / unquote(match[2])))
    return f"{match[1]}{path}{match[3]}"


_LEAST_ITEM = 64 * 2**10  # what opening and closing a file costs, in bytes read
_CHOICES = {
    "uri": "one of them",
    "roots": "`source.meta_table.roots`",
    "listing": "rows as they come",
    "events": "rows as they come",
    "max_item_size": "rows whose locations name ranges of bytes",
}


class OptionAttributes(Section):
    """How text files are written."""

    delimiter: str = Field(",", description="csv: one ASCII character between cells.")
    quote: str = Field('"', description="csv: one ASCII character around cells.")
    escape: str | None = Field(
        None,
        description="csv: one ASCII character before a literal one (default: none, quotes are "
        "doubled).",
    )
    names: tuple[Text, ...] = Field(
        (), description="csv: columns of files without a header (default: the header)."
    )
    charset: str = Field("utf-8", description="csv and JSON: a charset of Python (default utf-8).")

    def check(self) -> None:
        try:
            "".encode(self.charset)  # also refuses codecs that give no text
        except LookupError as error:
            problem = f"is {self.charset!r:.80}; expected a charset that Python knows"
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

    order: KeyOrder = Field(
        KeyOrder.ANY,
        description="any: each poll lists all keys; ascending: only those behind the highest known "
        "(default any).",
    )
    relist: Duration | None = Field(
        None,
        description="With ascending or events: period of listing all keys (seconds, or with a "
        "unit; default: 1h).",
    )


class EventAttributes(Section):
    """Queue with a bucket's notifications of new objects."""

    queue: QueueUrl = Field(
        description="URL of the SQS queue of the bucket's notifications, read by this stream only."
    )


class SourceAttributes(Section):
    """Where files land, or the table of your own that lists them, and how they are read."""

    uri: Location | None = Field(
        None,
        description="Folder or s3://bucket/prefix where files land (default: none, then "
        "`meta_table` is needed).",
    )
    meta_table: TableAttributes | None = Field(
        None, description="Instead of `uri`: a table of your own, one row per file."
    )
    roots: tuple[Location, ...] = Field(
        (), description="Folders outside of `uri` where links may lead (default: none)."
    )
    include: Annotated[tuple[Text, ...], Field(min_length=1)] = Field(
        ("*",), description="Patterns of file names (`*`, `?`, `[abc]`)."
    )
    exclude: tuple[Text, ...] = Field(
        (), description="Patterns of file names to ignore (default: none)."
    )
    listing: ListingAttributes = Field(
        ListingAttributes(), description="How a bucket is listed (default: all keys at each poll)."
    )
    events: EventAttributes | None = Field(
        None, description="Notifications of new objects (default: listing)."
    )
    max_item_size: Annotated[Size, Field(ge=_LEAST_ITEM)] | None = Field(
        None,
        description="Larger plain csv and jsonl files become several items, ranges of whole "
        "records (bytes, or with a unit; default: none).",
    )
    format: SourceFormat = Field(
        SourceFormat.AUTO,
        description="Contents of the files; json is an array or documents; auto decides file by "
        "file (default auto).",
    )
    options: OptionAttributes = Field(OptionAttributes(), description="How text files are written.")

    def check(self) -> None:
        if self.meta_table is None and self.uri is None:
            raise refusal("is missing; expected it, or `source.meta_table`", key="source.uri")
        if self.meta_table is None:
            self._arrivals()
            self._check_arrivals(absolute_uri(self.uri or ".", Path("/")))
            return
        for key in ("uri", "roots", "include", "exclude", "listing", "events", "max_item_size"):
            if key in self.model_fields_set:
                choice = _CHOICES.get(key, "`source.meta_table.where` chooses rows")
                problem = f"cannot stand beside `source.meta_table`; expected {choice}"
                raise refusal(problem, key=f"source.{key}")

    def _check_arrivals(self, place: str) -> None:
        if self.roots and scheme_of(place) != "file":
            problem = "says where links lead to; expected none beside a bucket, which has no links"
            raise refusal(problem, key="source.roots")
        for key in ("listing", "events"):
            if key in self.model_fields_set and not filesystem_of(place).has_events:
                problem = "is there for buckets only; expected none beside a folder"
                raise refusal(problem, key=f"source.{key}")

    def to_model(self, base: Path) -> SourceFiles:
        """Return the model; relative paths are below `base`."""
        if self.meta_table is not None:
            return self.meta_table.to_model(base, **self._read_as())
        return Source(
            uri=absolute_uri(self.uri or ".", base),  # never None here: `check` has refused that
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
