"""The keys of a stream file below `source`: where files land and how they are read."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from batch_pipeline.model.location import scheme_of
from batch_pipeline.model.stream import (
    Arrivals,
    CsvOptions,
    KeyOrder,
    Source,
    SourceFiles,
    SourceFormat,
)
from batch_pipeline.settings.section import Section
from batch_pipeline.settings.stream_values import (
    Duration,
    Location,
    QueueUrl,
    Size,
    Text,
    absolute_uri,
    refusal,
)
from batch_pipeline.settings.table_attributes import TableAttributes
from batch_pipeline.storage.filesystem import filesystem_of

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
        description="csv: one ASCII character that takes the meaning from the next one; without it "
        "a quote inside of a cell is doubled (default: none).",
    )
    names: tuple[Text, ...] = Field(
        (), description="csv: columns of files without a header (default: the first record)."
    )
    charset: str = Field(
        "utf-8", description="csv and JSON: a charset that Python knows (default utf-8)."
    )

    def check(self) -> None:
        try:
            "".encode(self.charset)  # also refuses codecs that give no text
        except LookupError as error:
            problem = f"is {self.charset!r:.80}; expected a charset that Python knows"
            raise refusal(problem, key="source.options.charset") from error
        self.csv()

    def csv(self) -> CsvOptions:
        """Give the domain's form of what concerns csv."""
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
        description="any: every look lists all keys; ascending, where later files have higher "
        "keys: a look asks for those behind the highest one alone (default any).",
    )
    relist: Duration | None = Field(
        None,
        description="With ascending, or with events: how often all keys are listed nevertheless, "
        "which finds what came out of order (seconds, or with a unit; default: 1h).",
    )


class EventAttributes(Section):
    """Where a bucket tells of new objects."""

    queue: QueueUrl = Field(
        description="URL of the SQS queue that the bucket's event notifications go to; only this "
        "stream reads it."
    )


class SourceAttributes(Section):
    """Where files land, or the table of your own that lists them, and how they are read."""

    uri: Location | None = Field(
        None,
        description="Where files land: a folder, by a file:///… URI or by a path, relative to the "
        "stream file; or s3://bucket/prefix (default: none, then `meta_table` is needed).",
    )
    meta_table: TableAttributes | None = Field(
        None, description="In place of uri: a table of your own, one row for each file."
    )
    roots: tuple[Location, ...] = Field(
        (),
        description="Where links in the folder may lead to, beside the folder itself: folders, by "
        "file:///… URIs or by paths, relative to the stream file (default: nowhere).",
    )
    include: Annotated[tuple[Text, ...], Field(min_length=1)] = Field(
        ("*",),
        description="Patterns of names (`*`, `?`, `[abc]`): a file is read if it matches one.",
    )
    exclude: tuple[Text, ...] = Field(
        (), description="Patterns of names: a file that matches one is left out (default: none)."
    )
    listing: ListingAttributes = Field(
        ListingAttributes(), description="How a bucket is listed (default: all keys at each look)."
    )
    events: EventAttributes | None = Field(
        None, description="Where a bucket tells of new files (default: it is listed)."
    )
    max_item_size: Annotated[Size, Field(ge=_LEAST_ITEM)] | None = Field(
        None,
        description="Plain csv and jsonl files larger than this become several items, each a "
        "range of whole records, and are encoded, resumed and repeated range by range (bytes, or "
        "with a unit; default: none, a file is one item).",
    )
    format: SourceFormat = Field(
        SourceFormat.AUTO,
        description="What the files contain: csv, jsonl, json (an array, or documents), parquet, "
        "avro, or auto: decided file by file (default auto).",
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

    def to_domain(self, base: Path) -> SourceFiles:
        """Give the domain's form, with relative paths starting at `base`."""
        if self.meta_table is not None:
            return self.meta_table.to_domain(base, **self._read_as())
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
        return {
            "format": self.format,
            "csv": self.options.csv(),
            "charset": self.options.charset,
        }
