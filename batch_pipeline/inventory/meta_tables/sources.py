"""Meta tables with their high watermarks: open users' tables, and read the items of streams.

Users' tables are only read. Their rows hold the location and the weight of each file; sizes and
times come from the file itself. Ids that restart are detected.
"""

import logging
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from time import monotonic
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import exc

from batch_pipeline.inventory.batch_states import late_items, planned_ids
from batch_pipeline.inventory.connection import (
    fetch_column,
    fetch_rows,
    first_line,
    named_statement,
    transaction,
)
from batch_pipeline.inventory.meta_tables.catalogue import MetaColumns, find_table
from batch_pipeline.inventory.meta_tables.connection import (
    database_identity,
    is_same_database,
    read_one_statement,
    read_transaction,
)
from batch_pipeline.inventory.meta_tables.reflected_table import (
    CutStatements,
    MetaItem,
    ReflectedMetaTable,
    cuts_before_bad_weight,
)
from batch_pipeline.inventory.meta_tables.watermarks import (
    INNODB,
    SettleBy,
    StoredCandidates,
    WatermarkChoice,
    WatermarkReading,
    catalogue_names,
    choose_watermark,
    database_time,
    insert_time,
    mysql_version,
    no_insert_time,
)
from batch_pipeline.model.batch import MAX_ID, MIN_ID, Batch, IdRange
from batch_pipeline.model.errors import (
    BadWeightError,
    BatchDataError,
    InvalidValueError,
    MetaTableChangedError,
    MetaTableRestartedError,
)
from batch_pipeline.model.filter import Filter, is_storable
from batch_pipeline.model.item import Item, LandedFile
from batch_pipeline.model.location import (
    MARK,
    S3,
    S3_SCHEMES,
    is_object,
    to_location,
    to_path,
    to_uri,
)
from batch_pipeline.model.planning import Cut, Limits
from batch_pipeline.model.record_rules import OnBadFile
from batch_pipeline.model.stream import Strategy, TableSource

log = logging.getLogger(__name__)

_WATERMARK_SECONDS = 1.0
_TABLE_SECONDS = 60.0
_warned_jobs: set[tuple[str, str]] = set()  # with their tables; a worker that polls warns once
_Result = TypeVar("_Result")


@dataclass(slots=True, kw_only=True)
class MetaSource:
    """A meta table with its high watermark, from which batches are cut.

    A high watermark stays valid, so it is read again only if a batch would end there, or after one
    second, since the table may have been truncated.
    """

    table: ReflectedMetaTable
    choice: WatermarkChoice
    _known: int | None = field(default=None, init=False)
    _known_until: float = field(default=0.0, init=False)
    _texts: CutStatements | None = field(default=None, init=False)
    _texts_known: bool = field(default=False, init=False)

    @property
    def name(self) -> str:
        """The table's canonical name."""
        return self.table.canonical_name

    def read_high_watermark(self) -> WatermarkReading:
        """Read the high watermark from the database."""
        reading = self.choice.watermark.read()
        self._known, self._known_until = reading.value, monotonic() + _WATERMARK_SECONDS
        return reading

    def known_high_watermark(self) -> int | None:
        """Return the high watermark, read at most one second ago."""
        return self._known if monotonic() < self._known_until else self.read_high_watermark().value

    def cut_statements(self, inventory: sa.Engine) -> CutStatements | None:
        """Return the statements that cut a batch, to be executed on the inventory's connection.

        None if the table is in another database, is a view or has policies, or if the inventory's
        role may not read it, or if a column has a user-defined type, whose operators depend on the
        search path.
        """
        if not self._texts_known:
            self._texts = self.table.cut_statements() if self._may_cut(inventory) else None
            self._texts_known = True
        return self._texts

    def _may_cut(self, inventory: sa.Engine) -> bool:
        if not is_same_database(inventory, self.table.engine):
            return False
        sa_table = self.table.table
        roles, where = self.table.columns, self.table.where
        columns = [roles.uid, roles.weight or roles.uid, *(where.columns if where else ())]
        names = {"schema": sa_table.schema, "table": sa_table.name, "columns": columns}
        [(is_readable,)] = fetch_rows(inventory, named_statement("meta_tables/may_cut"), names)
        return bool(is_readable)

    def next_cut(self, after_id: int | None, last_id: int, limits: Limits) -> Cut | None:
        """Cut the next batch above an id (None: from the first row on) up to `last_id`.

        A batch ends at the high watermark at the latest; None if there is no item up to it.
        """
        known = self._known
        if known is not None and monotonic() < self._known_until:
            cut = self.table.next_cut(after_id, min(known, last_id), limits)
            if cut is not None and (cut.closed or known >= last_id):
                return cut
        high_watermark = self.read_high_watermark().value
        if high_watermark is None:
            return None
        return self.table.next_cut(after_id, min(high_watermark, last_id), limits)

    def check_not_restarted(self, job: str, planned_up_to: int) -> None:
        """Check that the next rows of the table get ids above those that a job has planned.

        The check fails if the table was truncated with its sequence or created again, or if the
        sequence was reset. It passes if only the last rows were deleted. If the next id is unknown
        and the highest id is below the bookmark, it logs a warning, once for each job and process.
        Rows inserted after a restart whose ids already exceed the bookmark are not detected; their
        batches have changed, which an audit finds.

        Raises:
            MetaTableRestartedError: the next row would get an id that the job has already planned.
        """
        highest = self.table.highest_id()
        if highest is not None and highest >= planned_up_to:
            return
        next_rows = next_ids(self.table, highest)
        reason = next_rows.unknown or "several sequences assign them"
        if next_rows.ids and min(next_rows.ids) > planned_up_to:
            return
        if next_rows.ids and max(next_rows.ids) <= planned_up_to:
            next_id = max(next_rows.ids)
            if highest is None or highest < next_id:
                raise MetaTableRestartedError(job, self.name, planned_up_to, next_id)
            reason = f"the database would assign {next_id} next, so they come from elsewhere"
        if (job, self.name) not in _warned_jobs:
            _warned_jobs.add((job, self.name))
            current_end = "there are none" if highest is None else f"end at {highest}"
            log.warning(
                "%s: ids of %s are planned up to %d and now %s; whether they restart is unknown "
                "(%s). Rows that get ids up to %d would not be acquired.",
                *(job, self.name, planned_up_to, current_end, reason, planned_up_to),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTerms:
    """The options for reading a meta table.

    `strategy` is the requested way to find the high watermark. `reader` is the job that reads; only
    the view of published batches depends on it.
    """

    name: str
    columns: MetaColumns
    where: Filter | None = None
    on_bad_weight: int | None = None
    strategy: Strategy | None = None
    settle_by: SettleBy | None = None
    reader: str | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """The cache key of the terms. It has the filter as text, since 1 equals True in Python."""
        return self, repr(self.where)


class MetaSources:
    """Opens meta tables and caches them for a minute. Thread-safe.

    The candidates of their high watermarks are stored in the inventory, shared by all processes.
    """

    def __init__(self, engine: sa.Engine, inventory: sa.Engine) -> None:
        self._engine = engine
        self._inventory = inventory
        self._opening = threading.Lock()
        self._opened: dict[tuple[object, ...], tuple[float, MetaSource]] = {}
        self._warned: set[str] = set()

    def use(self, terms: SourceTerms, work: Callable[[MetaSource], _Result]) -> _Result:
        """Call a function with an open meta table; reopen and repeat once if the table changed.

        Raises:
            ConfigurationError: the table cannot be opened.
            MetaUnreachableError: its database does not answer.
        """
        try:
            return work(self._source(terms))
        except MetaTableChangedError:
            self._forget(terms)
        return work(self._source(terms))

    def table(self, terms: SourceTerms) -> ReflectedMetaTable:
        """Open a meta table without its high watermark.

        Raises:
            ConfigurationError: the table cannot be opened.
            MetaUnreachableError: its database does not answer.
        """
        return ReflectedMetaTable.open(
            self._engine,
            terms.name,
            terms.columns,
            terms.where,
            terms.on_bad_weight,
            database=database_identity(self._engine, self._inventory),
        )

    def canonical_name(self, name: str) -> str:
        """Return the canonical name of a table, which jobs store.

        Raises:
            UnknownMetaTableError: there is no such table.
            MetaUnreachableError: its database does not answer.
        """
        return find_table(self._engine, name).canonical_name

    def _forget(self, terms: SourceTerms) -> None:
        with self._opening:
            self._opened.pop(terms.key, None)
        self._engine.dispose()  # its connections have statements prepared for the old table

    def _source(self, terms: SourceTerms) -> MetaSource:
        with self._opening:
            oldest = monotonic() - _TABLE_SECONDS
            opened_at, source = self._opened.get(terms.key, (oldest, None))
            if source is None or opened_at < oldest:
                source = self._open(terms)
                recent = {key: entry for key, entry in self._opened.items() if entry[0] > oldest}
                self._opened = {**recent, terms.key: (monotonic(), source)}
            return source

    def _open(self, terms: SourceTerms) -> MetaSource:
        table = self.table(terms)
        scope = "" if table.database is None else table.database.shown
        store = StoredCandidates(self._inventory, scope)
        choice = choose_watermark(table, terms.strategy, settle_by=terms.settle_by, store=store)
        self._warn(*table.notes, *choice.warnings)
        return MetaSource(table=table, choice=choice)

    def _warn(self, *notes: str) -> None:
        """Log each note once per process."""
        for note in notes:
            if note not in self._warned:
                self._warned.add(note)
                log.warning("%s", note)


_SQLITE_COLUMN = sa.text("""
SELECT upper(type) = 'INTEGER' AND pk = 1
       AND (SELECT sum(pk > 0) FROM pragma_table_info(:table, :schema)) = 1
  FROM pragma_table_info(:table, :schema) WHERE name = :uid
""")


@dataclass(frozen=True, slots=True, kw_only=True)
class NextIds:
    """The next id of each sequence of a table; empty if `unknown` holds the reason."""

    ids: tuple[int, ...] = ()
    unknown: str = ""


def next_ids(table: ReflectedMetaTable, highest: int | None) -> NextIds:
    """Return the ids that the next rows will get. `highest` is the table's highest id."""
    dialect = table.engine.dialect.name
    if table.is_view:
        return NextIds(unknown="it is a view")
    with read_transaction(table.engine) as connection:
        if dialect == "postgresql":
            return _next_sequence_ids(connection, table)
        if dialect in {"mysql", "mariadb"}:
            return _next_auto_increment_id(connection, table)
        if dialect == "sqlite":
            return _next_rowid(connection, table, highest)
    return NextIds(unknown=f"the next id is not available from {dialect}")


def _next_sequence_ids(connection: sa.Connection, table: ReflectedMetaTable) -> NextIds:
    source = named_statement("meta_tables/sequences_of_uid").text
    statement = named_statement("meta_tables/id_sequences", SEQUENCES=source)
    sequences = connection.execute(statement, catalogue_names(table)).all()
    if not sequences:
        return NextIds(unknown=f"ids of {table.columns.uid} do not come from a sequence")
    unreadable = [
        f"{sequence.schema}.{sequence.name}" for sequence in sequences if not sequence.readable
    ]
    if unreadable:
        step = "grant SELECT on it (and USAGE on its schema) to this role"
        return NextIds(unknown=f"its sequence {', '.join(unreadable)} may not be read: {step}")
    return NextIds(ids=tuple(_next_value(connection, sequence) for sequence in sequences))


def _next_value(connection: sa.Connection, sequence: sa.Row[Any]) -> int:
    sequence_table = sa.table(
        sequence.name, sa.column("last_value"), sa.column("is_called"), schema=sequence.schema
    )
    last_value, is_called = connection.execute(sa.select(sequence_table)).one()
    next_value: int = last_value + sequence.step if is_called else last_value
    return next_value


def _next_auto_increment_id(connection: sa.Connection, table: ReflectedMetaTable) -> NextIds:
    if (mysql_version(connection) or ()) >= (8,):
        # By default it returns statistics that are up to a day old. MySQL 5.7 has no such setting.
        connection.execute(sa.text("SET SESSION information_schema_stats_expiry = 0"))
    row = connection.execute(INNODB, catalogue_names(table)).one()
    if "auto_increment" not in row.extra:
        return NextIds(unknown=f"{table.columns.uid} is not AUTO_INCREMENT")
    if row.next_id is None:  # https://bugs.mysql.com/bug.php?id=91038
        return NextIds(unknown="MySQL does not report the next id")
    return NextIds(ids=(int(row.next_id),))


def _next_rowid(
    connection: sa.Connection, table: ReflectedMetaTable, highest: int | None
) -> NextIds:
    names, schema = catalogue_names(table), table.table.schema
    master = sa.table("sqlite_master", sa.column("name"), sa.column("sql"), schema=schema)
    query = sa.select(master.c.sql).where(master.c.name == table.table.name)
    definition = (connection.execute(query).scalar_one_or_none() or "").upper()
    is_rowid = connection.execute(_SQLITE_COLUMN, names).scalar_one_or_none()
    if not is_rowid or "WITHOUT ROWID" in definition:
        return NextIds(unknown=f"ids of {table.columns.uid} are not assigned by SQLite")
    if "AUTOINCREMENT" not in definition:
        return NextIds(ids=(1 if highest is None else highest + 1,))
    sequences = sa.table("sqlite_sequence", sa.column("name"), sa.column("seq"), schema=schema)
    last = sa.select(sa.func.max(sequences.c.seq)).where(sequences.c.name == table.table.name)
    return NextIds(ids=(max(connection.execute(last).scalar_one() or 0, highest or 0) + 1,))


_MAX_MATCHES = 20


@dataclass(frozen=True, kw_only=True)
class StreamTable(ABC):
    """The items of one stream: rows of the product's own table, or of a user's.

    Ids of streams are not negative, since partition keys have no sign.
    """

    inventory: sa.Engine
    stream: str

    @property
    @abstractmethod
    def source(self) -> MetaSource:
        """The open table with its high watermark.

        Raises:
            ConfigurationError: the table cannot be opened.
            MetaUnreachableError: its database does not answer.
        """

    @property
    @abstractmethod
    def time_column(self) -> str | None:
        """The column of insert times, None if the stream names none."""

    @abstractmethod
    def to_items(self, rows: Sequence[MetaItem], *, checks: bool) -> list[Item]:
        """Return the items of rows. With `checks`, each must name a file that may be read.

        Raises:
            BatchDataError: a row names no such file.
        """

    def use(self, work: Callable[[MetaSource], _Result]) -> _Result:
        """Call a function with the open table."""
        return work(self.source)

    @property
    def name(self) -> str:
        """The table's canonical name."""
        return self.source.name

    def reflected(self) -> ReflectedMetaTable:
        """Return the table that the queries run against."""
        return self.source.table

    def read_high_watermark(self) -> WatermarkReading:
        """Read the high watermark from the database."""
        return self.use(MetaSource.read_high_watermark)

    def high_watermark(self) -> int | None:
        """Return the highest id below which no row can still appear."""
        return self.read_high_watermark().value

    def cuts(self, after_id: int | None, high_watermark: int, limits: Limits) -> Iterator[Cut]:
        """Cut all items above an id up to the high watermark, in one pass.

        The cuts end before a row with a rejected weight.

        Raises:
            BadWeightError: the first item above `after_id` has a rejected weight.
            MetaTableError: an id is negative or a duplicate.
        """

        def started(source: MetaSource) -> tuple[Cut | None, Iterator[Cut]]:
            cuts = cuts_before_bad_weight(source.table, after_id, high_watermark, limits)
            return next(cuts, None), cuts

        first, others = self.use(started)
        if first is not None:
            yield first
            yield from others

    def oldest_age(self, after_id: int | None) -> timedelta | None:
        """Return the age of the oldest item above an id; None without a column of insert times.

        Raises:
            MetaTableError: the column does not exist or holds no times.
        """
        name = self.time_column
        if name is None:
            return None

        def query_source(source: MetaSource) -> timedelta | None:
            table = source.table
            time = insert_time(table, name)
            items = table.weighed(_next_id(after_id), MAX_ID).order_by(None)
            query = items.with_only_columns(sa.func.min(time))
            with read_transaction(table.engine) as connection:
                try:
                    oldest = connection.execute(query).scalar_one()
                    return None if oldest is None else database_time(connection, time) - oldest
                except (TypeError, exc.DataError) as error:  # MySQL's zero date, or infinity
                    raise no_insert_time(table, name, first_line(error)) from error

        return self.use(query_source)

    def backlog(self, after_id: int | None) -> tuple[int, int]:
        """Return count and weight of the items above an id; a rejected weight counts as 0."""
        if after_id == MAX_ID:
            return 0, 0
        ids = IdRange(first_id=_next_id(after_id), last_id=MAX_ID)
        facts = self.use(lambda source: source.table.facts(ids))
        return facts.count, facts.weight

    def check_not_restarted(self, planned_up_to: int) -> None:
        """Check that new rows still get ids above those already planned.

        Raises:
            MetaTableRestartedError: the ids restart.
        """
        self.use(lambda source: source.check_not_restarted(self.stream, planned_up_to))

    def items(self, batch: Batch) -> list[Item]:
        """Read the items of a batch in id order.

        A batch of late arrivals has a list of ids. A range has the items that it was planned with,
        except those that another batch lists as late arrivals.

        Raises:
            BatchDataError: a row names no file, or has a rejected weight.
        """
        late = partial(fetch_column, self.inventory, late_items(batch))
        try:
            rows = self.use(lambda source: read_items(self.inventory, source.table, batch, late))
        except BadWeightError as error:
            problem = f"the weight is {error.weight!r}; expected a number from 0 to 2^63 - 1"
            raise _item_error(error.table, error.item_id, problem) from error
        return self.to_items(rows, checks=True)

    def find(self, text: str) -> list[Item]:
        """Return at most 20 items whose id, location or last part of the location is `text`."""

        def query_source(source: MetaSource) -> list[MetaItem]:
            table = source.table
            query = table.queries.items.where(_matches(table, text)).limit(_MAX_MATCHES)
            bounds = {"first_id": MIN_ID, "last_id": MAX_ID}
            with read_one_statement(table.engine) as connection:
                rows = connection.execute(query, bounds).all()
            return [MetaItem(id=row[0], item=row[1], weight=row[2] or 0) for row in rows]

        return self.to_items(self.use(query_source), checks=False)


@dataclass(frozen=True, kw_only=True)
class UserMetaTable(StreamTable):
    """The items of one stream in a user's table."""

    sources: MetaSources
    table_source: TableSource
    on_bad_file: OnBadFile = OnBadFile.FAIL

    @property
    def time_column(self) -> str | None:
        """The column of insert times, None if the stream names none."""
        return self.table_source.imported

    @property
    def source(self) -> MetaSource:
        """The open table with its high watermark.

        Raises:
            ConfigurationError: the table cannot be opened.
            MetaUnreachableError: its database does not answer.
        """
        return self.use(lambda source: source)

    def use(self, work: Callable[[MetaSource], _Result]) -> _Result:
        """Call a function with the open table; reopen and repeat once if the table changed."""
        return self.sources.use(source_terms_of_stream(self.table_source), work)

    def to_items(self, rows: Sequence[MetaItem], *, checks: bool) -> list[Item]:
        """Return the items of rows. With `checks`, each must name a file that may be read.

        Raises:
            BatchDataError: a row names no such file.
        """
        locations = map(self._checked_location if checks else _display_location, rows)
        return [
            Item(id=row.id, file=LandedFile(location=location), row_weight=row.weight)
            for row, location in zip(rows, locations, strict=True)
        ]

    def _checked_location(self, row: MetaItem) -> str:
        fails = self.on_bad_file is OnBadFile.FAIL
        try:
            location = to_location(row.item)
        except InvalidValueError as error:
            if fails:
                problem = f"the location is {_redact(row.item)}; expected {error.expected}"
                raise _item_error(self.name, row.id, problem) from error
            location = _mark_invalid(row.item)  # opening it fails, which quarantines the file
        roots = self.table_source.within
        if fails and roots.refuse(location):
            problem = f"the location is {_redact(row.item)}, which {roots.advice}"
            raise _item_error(self.name, row.id, problem)
        return location


def read_items(
    inventory: sa.Engine,
    table: ReflectedMetaTable,
    planned_batch: Batch,
    late_ids: Callable[[], Collection[int]] = tuple,
) -> list[MetaItem]:
    """Read the items that a batch was planned with and that still exist, in id order.

    Rows that arrived later are found by the next audit. `late_ids` returns those that are known.
    """
    with transaction(inventory) as connection:
        planned = planned_ids(connection, planned_batch)
    return table.items_of_batch(planned_batch, planned, late_ids)


def source_terms_of_stream(table_source: TableSource) -> SourceTerms:
    """Return the options for reading the table of a stream."""
    imported, settle = table_source.imported, table_source.settle
    settle_by = None
    if imported is not None:
        settle_by = SettleBy(imported) if settle is None else SettleBy(imported, settle)
    return SourceTerms(
        name=table_source.table,
        columns=MetaColumns(
            uid=table_source.uid, item=table_source.item, weight=table_source.weight
        ),
        where=table_source.where,
        on_bad_weight=table_source.on_bad_weight,
        strategy=table_source.ceiling,
        settle_by=settle_by,
    )


def _matches(table: ReflectedMetaTable, query: str) -> sa.ColumnElement[bool]:
    column: sa.Column[Any] = table.table.c[table.columns.item]
    text = column if isinstance(column.type, sa.String) else sa.cast(column, sa.String(4_000))
    uris: tuple[str, ...] = ()
    with suppress(InvalidValueError):  # a name, or an id
        uris = _equivalent_uris(to_location(query))
    spellings = {query, *uris} if is_storable(query) else {*uris}
    if uris and not is_object(uris[0]) and MARK not in uris[0]:
        spellings.add(to_path(uris[0]))
    conditions = [text == spelling for spelling in sorted(spellings)]
    conditions += [text.startswith(uri + MARK, autoescape=True) for uri in uris]
    if "/" not in query:
        escaped = to_uri(f"/{query}").rpartition("/")[2]  # as in URIs of files
        for name in sorted({query, escaped}):
            if name and is_storable(name):
                conditions.append(text.endswith(f"/{name}", autoescape=True))
                conditions.append(text.contains(f"/{name}{MARK}", autoescape=True))
    if query.isascii() and query.isdigit() and len(query) < 19:
        conditions.append(table.uid == sa.literal(int(query), sa.BigInteger))
    return sa.or_(sa.false(), *conditions)


def _equivalent_uris(location: str) -> tuple[str, ...]:
    """Return the URIs by which a table may name the same file."""
    if not is_object(location):
        return (location,)
    return tuple(scheme + location.removeprefix(S3) for scheme in S3_SCHEMES)


def _next_id(after_id: int | None) -> int:
    return MIN_ID if after_id is None else after_id + 1


def _display_location(row: MetaItem) -> str:
    try:
        return to_location(row.item)
    except InvalidValueError:
        return _mark_invalid(row.item)


def _mark_invalid(value: object) -> str:
    """Return a row's text in brackets if truncation could make it look like a location."""
    text = _redact(value)
    return f"<{text}>" if text.startswith("/") or "://" in text else text


def _redact(value: object) -> str:
    """Return a row's text without passwords, truncated to 300 characters."""
    text = value if isinstance(value, str) else repr(value)
    return re.sub(r"//[^/@\s]*@", "//***@", text)[:300]


def _item_error(table: str, item_id: int, problem: str) -> BatchDataError:
    return BatchDataError(
        f"{table}: {problem} (id {item_id}). Nothing of this batch was "
        f"published. Correct the row and run again."
    )
