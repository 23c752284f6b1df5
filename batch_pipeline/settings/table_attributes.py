"""The keys of `source.meta_table` in a stream file: the user's own table of files."""

import re
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from batch_pipeline.model.errors import InvalidValueError
from batch_pipeline.model.filter import Filter, parse_filter
from batch_pipeline.model.id_range import MAX_ID
from batch_pipeline.model.stream import Strategy, TableSource
from batch_pipeline.settings.section import Section
from batch_pipeline.settings.stream_values import (
    Duration,
    Location,
    Text,
    absolute_uri,
    refusal,
)

_KEY = "source.meta_table"
_VARIABLE = re.compile(r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)\})")
_URL = re.compile(r"[a-z][a-z0-9_]*(\+[a-z0-9_]+)?://.*")
_SQLITE_FILE = re.compile(r"(sqlite(?:\+[a-z0-9_]+)?:///)([^/:?][^?]*)(.*)")
_SECRETS = ("password", "passwd", "pwd", "passfile", "secret", "token")
_ADVICE = (
    "expected $NAME of an environment variable that holds the database URL, or a URL without a "
    "password"
)


def _connection(text: str) -> str:
    """Check where the database is; the text is never repeated, for it may hold a password."""
    match = _VARIABLE.fullmatch(text)
    if match is not None:
        return f"${match[1] or match[2]}"
    if not _URL.fullmatch(text):
        raise refusal(f"is no variable and no database URL; {_ADVICE}")
    try:
        parts = urlsplit(text)
        has_password = parts.password is not None
    except ValueError as error:
        raise refusal(f"is no database URL; {_ADVICE}") from error
    asked = [name.lower() for name, _ in parse_qsl(parts.query, keep_blank_values=True)]
    if has_password or any(secret in name for name in asked for secret in _SECRETS):
        raise refusal(f"holds a password, which a stream file must not; {_ADVICE}")
    return text


def _filter(value: Any) -> Filter:
    try:
        return parse_filter(value, f"{_KEY}.where")
    except InvalidValueError as error:
        problem = f"is {error.value!r:.80}; expected {error.expected}"
        raise refusal(problem, key=error.name) from error


_TERMS = {"type": "array", "items": {"type": "object"}}
_FILTER_SCHEMA = {"anyOf": [_TERMS, {"type": "object"}, {"type": "null"}]}
Where = Annotated[Any, BeforeValidator(_filter), WithJsonSchema(_FILTER_SCHEMA)]


class TableAttributes(Section):
    """A meta table of your own: one row for each file, with an id that grows."""

    table: Text = Field(description="Its name; another schema's table as `schema.table`.")
    roots: tuple[Location, ...] = Field(
        (),
        description="Where its files may lie, links followed, one or more: folders, by file:///… "
        "URIs or by paths, relative to the stream file, and prefixes such as s3://bucket/prefix. "
        "A row that names a file elsewhere is refused; `[/]` is anywhere on disks (default: none, "
        "which is refused).",
    )
    conn: Annotated[Text, AfterValidator(_connection)] | None = Field(
        None,
        description="$NAME of an environment variable with the URL of its database, or a URL "
        "without a password; else BATCH_PIPELINE_META_CONN has the URL (default: the inventory's "
        "database).",
    )
    uid: Text = Field("uid", description="Column of ids: unique, never used again (default uid).")
    item: Text = Field(
        "item",
        description="Column of locations: absolute paths, file:///… or s3://… URIs (default item).",
    )
    weight: Text | None = Field(
        "weight",
        description="Column of what batch limits count, in bytes as a rule; null: every file "
        "weighs 0 (default weight).",
    )
    where: Where = Field(
        None,
        description="Which rows: a list of `{column, operator, value}`, `{all: […]}`, `{any: […]}` "
        "(default: all).",
    )
    imported: Text | None = Field(
        None, description="Column of the times at which rows were inserted (default: none)."
    )
    ceiling: Strategy | None = Field(
        None,
        description="How it is known that no row can still appear below an id (default: the exact "
        "way of the database, else settle).",
    )
    settle: Duration | None = Field(
        None,
        description="Of settle: how long a row is left alone after it was imported (seconds, or "
        "with a unit; default: 15m).",
    )
    on_bad_weight: Annotated[int, Field(strict=True, ge=0, le=MAX_ID)] | None = Field(
        None,
        description="What a row counts whose weight is NULL, negative or no number (default: "
        "such rows are refused).",
    )

    def check(self) -> None:
        if not self.roots:
            problem = (
                "is missing; expected the places below which rows may name files, such as "
                '`roots: ["/data/exports"]`, or `roots: ["/"]` for every file of this machine'
            )
            raise refusal(problem, key=f"{_KEY}.roots")
        self.to_domain(Path("/"))

    def to_domain(self, base: Path, **read_as: Any) -> TableSource:
        """Give the domain's form, with a relative SQLite file starting at `base`."""
        return TableSource(
            table=self.table,
            roots=tuple(absolute_uri(one, base) for one in self.roots),
            conn=None if self.conn is None else _with_base(self.conn, base),
            uid=self.uid,
            item=self.item,
            weight=self.weight,
            where=self.where,
            imported=self.imported,
            ceiling=self.ceiling,
            settle=self.settle,
            on_bad_weight=self.on_bad_weight,
            **read_as,
        )


def _with_base(conn: str, base: Path) -> str:
    match = _SQLITE_FILE.fullmatch(conn)
    if match is None:
        return conn
    path = quote(str(base.absolute() / unquote(match[2])))
    return f"{match[1]}{path}{match[3]}"
