"""Checks of the inventory, its server and its meta tables for the command `doctor`. Reads only."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from batch_pipeline.inventory.connection import fetch_value, location, named_statement, transaction
from batch_pipeline.inventory.jobs import ALL_IDS, highest_planned
from batch_pipeline.inventory.meta_tables.catalogue import find_table
from batch_pipeline.inventory.meta_tables.connection import read_one_statement, read_transaction
from batch_pipeline.inventory.meta_tables.filters import filter_expression
from batch_pipeline.inventory.meta_tables.reflected_table import ReflectedMetaTable
from batch_pipeline.inventory.meta_tables.sources import MetaSource
from batch_pipeline.inventory.meta_tables.watermarks import describe_reading
from batch_pipeline.inventory.migrate import can_migrate, check_revision
from batch_pipeline.inventory.status import many_partitions, may_read_dagster
from batch_pipeline.inventory.tables import SCHEMA, attempt, batch, job, metadata
from batch_pipeline.model.batch import MAX_ID, MIN_ID, AttemptStatus
from batch_pipeline.model.checks import Finding, Level, compare_clocks, failure, fine, warning
from batch_pipeline.model.errors import PipelineError, resume_step
from batch_pipeline.model.filter import AllOf, Condition, Filter, Operator


def check_inventory(inventory: sa.Engine, *, is_own: bool) -> Iterator[Finding]:
    """Check the server, the revision of the schema, and the privileges of this login.

    A schema of an earlier release on the embedded server (`is_own`) is migrated by the next command
    that opens it.

    Raises:
        DatabaseUnreachableError: the server does not answer.
    """
    subject = "inventory"
    version = fetch_value(inventory, sa.text("SHOW server_version"))
    yield fine(subject, f"PostgreSQL {version} at {location(inventory)}.")
    try:
        check_revision(inventory)
    except PipelineError as error:
        if is_own and can_migrate(inventory):
            text = "the next command that needs its schema creates or migrates it."
            yield fine(subject, text)
        else:
            yield failure(subject, str(error))
        return
    yield fine(subject, "its schema is that of this release.")
    yield from _rights(inventory)


# Roles of roles.sql with their purpose, and the privilege that shows membership. A login that lacks
# one of these lacks the role, or roles.sql was not run after a migration.
_READABLE = (*(table.name for table in metadata.sorted_tables), "inventory", "published")
_PLANNED = ("item", "job", "batch", "batch_state", "bookmark", "ceiling_candidate")
_WRITTEN = ("attempt", "part_file", "attempt_item", "load", "schema_version")
_DUTIES = (
    ("bp_reader", "read", "SELECT", _READABLE, Level.FAIL),
    ("bp_planner", "plan", "INSERT", _PLANNED, Level.WARN),
    ("bp_worker", "work on batches", "INSERT", _WRITTEN, Level.WARN),
)


def _rights(inventory: sa.Engine) -> Iterator[Finding]:
    for role, purpose, privilege, tables, level in _DUTIES:
        missing = _missing_rights(inventory, privilege, tables)
        if not missing:
            yield fine("rights", f"this login may {purpose}.")
            continue
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        text = (
            f"this login may not {purpose}: it lacks {', '.join(missing[:3])}{more}. Make it a "
            f"member of {role} (inventory/roles.sql); run the file after a migration."
        )
        yield Finding(subject="rights", level=level, text=text)


def _missing_rights(inventory: sa.Engine, privilege: str, tables: Sequence[str]) -> list[str]:
    """Return the privileges on tables that this login lacks."""
    usage = sa.select(sa.func.has_schema_privilege(SCHEMA, "USAGE"))
    names = [f"{SCHEMA}.{name}" for name in tables]
    privileges = sa.select(*(sa.func.has_table_privilege(name, privilege) for name in names))
    with transaction(inventory) as connection:
        if not connection.execute(usage).scalar_one():
            return [f"USAGE on schema {SCHEMA}"]
        results = connection.execute(privileges).one()
    return [
        f"{privilege} on {name}"
        for name, is_granted in zip(names, results, strict=True)
        if not is_granted
    ]


def check_source(
    subject: str, inventory: sa.Engine, source: MetaSource, job_name: str
) -> Iterator[Finding]:
    """Check a meta table: the choice of its high watermark, warnings, and the cost of its filter.

    The filter's cost is measured above the bookmark of the job.

    Raises:
        PipelineError: the meta table cannot be read.
    """
    choice, table = source.choice, source.table
    reading = describe_reading(source.read_high_watermark())
    yield fine(subject, f"{source.name} can be read; {reading}.")
    yield fine(subject, f"high watermark strategy {choice.strategy.value!r}: {choice.reason}.")
    for note in (*table.notes, *choice.warnings):
        yield warning(subject, f"{note}.")
    high_watermark = source.known_high_watermark()
    if table.where is None or high_watermark is None:
        return
    planned = _planned_up_to(inventory, job_name, source.name)
    cost = filter_cost(table, planned, high_watermark)
    text = f"rows read to filter the next ones: {cost.scanned}, kept: {cost.kept}."
    if cost.proposal is None:
        yield fine(subject, text)
    else:
        text = f"{text} An index would help: {cost.proposal}"
        yield warning(subject, text)


def _planned_up_to(inventory: sa.Engine, name: str, meta_table: str) -> int | None:
    query = sa.select(job.c.id).where(job.c.name == name, job.c.meta_table == meta_table)
    with transaction(inventory) as connection:
        job_id = connection.execute(query).scalar_one_or_none()
        return None if job_id is None else highest_planned(connection, job_id, ALL_IDS)


_SUBJECT = "server"
_BROKEN_INDEXES = sa.text("""
SELECT c.relname
  FROM pg_catalog.pg_index i
  JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = :schema AND NOT (i.indisvalid AND i.indisready)
 ORDER BY c.relname
""")
_IDLE_TRANSACTIONS = sa.text("""
SELECT pid, coalesce(nullif(application_name, ''), 'no name') AS name,
       extract(epoch FROM clock_timestamp() - xact_start)::bigint AS seconds
  FROM pg_catalog.pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid()
   AND state LIKE 'idle in transaction%'
   AND xact_start < clock_timestamp() - CAST(:long AS interval)
 ORDER BY xact_start LIMIT 3
""")
_PREPARED_TRANSACTIONS = sa.text("""
SELECT gid, extract(epoch FROM clock_timestamp() - prepared)::bigint AS seconds
  FROM pg_catalog.pg_prepared_xacts
 WHERE database = current_database() AND prepared < clock_timestamp() - CAST(:long AS interval)
 ORDER BY prepared LIMIT 3
""")
_COLLATION = sa.text("""
SELECT datcollversion AS made, pg_database_collation_actual_version(oid) AS now
  FROM pg_catalog.pg_database WHERE datname = current_database()
""")
_COLLATION_VERSION_SINCE = (15,)  # databases have a collation version
_LONG_TRANSACTION = timedelta(minutes=5)
_MAX_XID_AGE = 1_500_000_000  # of 2^31 transactions


def check_server(inventory: sa.Engine, *, long: timedelta = _LONG_TRANSACTION) -> Iterator[Finding]:
    """Check settings, clock, indexes, connections, and transactions open for longer than `long`.

    Raises:
        DatabaseUnreachableError: the server does not answer.
    """
    before = datetime.now(UTC)
    with transaction(inventory) as connection:
        facts = connection.execute(named_statement("server_facts")).one()
        broken = connection.execute(_BROKEN_INDEXES, {"schema": SCHEMA}).scalars().all()
        idle = connection.execute(_IDLE_TRANSACTIONS, {"long": long}).all()
        prepared = connection.execute(_PREPARED_TRANSACTIONS, {"long": long}).all()
        is_new = (inventory.dialect.server_version_info or (0,)) >= _COLLATION_VERSION_SINCE
        collation = connection.execute(_COLLATION).one() if is_new else None
    findings = [*_settings(facts), *compare_clocks("the database server", facts.now, before)]
    for name in broken:
        text = (
            f"the index {name} is invalid, so it is not used or not maintained. "
            f"Run `REINDEX INDEX CONCURRENTLY {SCHEMA}.{name};` as the owner."
        )
        findings.append(failure(_SUBJECT, text))
    for row in idle:
        text = (
            f"{row.name} (pid {row.pid}) has been idle in a transaction for {row.seconds:,} s, "
            f"which holds back high watermarks and vacuum. End that program, or run "
            f"`SELECT pg_terminate_backend({row.pid});`."
        )
        findings.append(warning(_SUBJECT, text))
    for row in prepared:
        text = (
            f"the prepared transaction {row.gid!r} has been open for {row.seconds:,} s, which "
            f"holds back high watermarks and vacuum. Run `COMMIT PREPARED` or `ROLLBACK PREPARED` "
            f"for it."
        )
        findings.append(warning(_SUBJECT, text))
    if collation is not None and None not in collation and collation.made != collation.now:
        text = (
            f"the system's collation is of version {collation.now}, indexes are of "
            f"{collation.made}: they may miss rows. Run `REINDEX DATABASE`, then "
            f"`ALTER DATABASE … REFRESH COLLATION VERSION`."
        )
        findings.append(warning(_SUBJECT, text))
    yield from findings
    if not findings:
        yield fine(_SUBJECT, "settings, clock, indexes and connections are in order.")


def _settings(facts: sa.Row[Any]) -> Iterator[Finding]:
    if facts.replica:
        yield failure(_SUBJECT, "it is a replica, which accepts no writes. Name its primary.")
    for name in ("fsync", "full_page_writes", "synchronous_commit"):
        if getattr(facts, name) == "off":
            text = (
                f"{name} is off: committed data may be lost or corrupt after a crash. Turn it on."
            )
            yield warning(_SUBJECT, text)
    if facts.autovacuum != "on":
        yield warning(_SUBJECT, "autovacuum is off: tables grow and become slow. Turn it on.")
    if facts.encoding != "UTF8":
        text = f"its encoding is {facts.encoding}, which lacks some characters. Use UTF8."
        yield warning(_SUBJECT, text)
    if facts.connections * 5 > facts.most_connections * 4:
        text = (
            f"{facts.connections} of {facts.most_connections} connections are in use. Raise "
            f"max_connections, or run fewer processes at once."
        )
        yield warning(_SUBJECT, text)
    if facts.xid_age > _MAX_XID_AGE:
        text = (
            f"{facts.xid_age:,} transactions are not frozen; at 2,147,483,648 it stops accepting "
            f"writes. Run `VACUUM FREEZE` and find what blocks autovacuum."
        )
        yield warning(_SUBJECT, text)


_STALE_AFTER = timedelta(minutes=10)
_DAEMON_TIMEOUT = timedelta(minutes=5)  # Dagster's daemons send a heartbeat every 30 s
_REQUIRED_DAEMONS = ("SENSOR", "SCHEDULER", "QUEUED_RUN_COORDINATOR")
# `timestamp` is in the time zone of Dagster's session; the serialized body has epoch seconds.
_HEARTBEATS = sa.text("""
SELECT daemon_type, coalesce(
    to_timestamp(substring(body FROM '"timestamp": ([0-9]+)')::float8),
    daemon_heartbeats.timestamp AT TIME ZONE 'UTC') AS sent_at
  FROM public.daemon_heartbeats
""")
_WAITING = sa.text("SELECT count(*) FROM public.runs WHERE status = 'QUEUED'")


def check_work(inventory: sa.Engine) -> Iterator[Finding]:
    """Check for paused jobs, stale attempts, and assets with too many partitions.

    Raises:
        DatabaseUnreachableError: the server does not answer.
    """
    paused = sa.select(job.c.name, job.c.paused_at, job.c.paused_reason).where(
        job.c.paused_at.is_not(None)
    )
    late = sa.func.clock_timestamp() - _STALE_AFTER
    stale = (
        sa.select(job.c.name, job.c.stream, sa.func.count().label("attempts"))
        .join(batch, batch.c.job_id == job.c.id)
        .join(attempt, attempt.c.batch_id == batch.c.id)
        .where(attempt.c.status == AttemptStatus.RUNNING, attempt.c.lease_until < late)
        .group_by(job.c.name, job.c.stream)
        .order_by(job.c.name, job.c.stream)
    )
    with transaction(inventory) as connection:
        paused_rows = connection.execute(paused.order_by(job.c.name)).all()
        stale_rows = connection.execute(stale).all()
        many = many_partitions(connection, sa.true())
    for row in paused_rows:
        reason = row.paused_reason or ""
        why = f": {reason}" if reason else ""
        since = f"paused since {row.paused_at:%Y-%m-%d %H:%M} UTC{why}."
        yield warning(row.name, f"{since} {resume_step(row.name, reason)}".rstrip())
    for row in stale_rows:
        text = f"running attempts whose lease expired more than ten minutes ago: {row.attempts}. "
        if row.stream is None:
            text += "Resume the job if it is paused, and acquire from it, which closes them."
        else:
            text += (
                "Neither sensors nor `reconcile` have closed them. Run `batch-pipeline reconcile`."
            )
        yield warning(row.name, text)
    for asset in many:
        yield warning(asset.stream, asset.sentence)


def check_dagster(inventory: sa.Engine, *, is_own: bool) -> Iterator[Finding]:
    """Check whether Dagster's daemon runs, if Dagster was ever started on this database.

    With the embedded server (`is_own`) the daemon runs only under `dev`.

    Raises:
        DatabaseUnreachableError: the server does not answer.
    """
    with transaction(inventory) as connection:
        is_readable = may_read_dagster(connection, "daemon_heartbeats", "runs")
        if is_readable is None:
            yield fine("dagster", "was never started on this database.")
            return
        if not is_readable:
            yield fine("dagster", "not checked: this login may not read its tables.")
            return
        heartbeats = {row.daemon_type: row.sent_at for row in connection.execute(_HEARTBEATS)}
        waiting = connection.execute(_WAITING).scalar_one()
        now = connection.execute(sa.select(sa.func.clock_timestamp())).scalar_one()
    newest = [heartbeats[name] for name in _REQUIRED_DAEMONS if name in heartbeats]
    last = min(newest, default=None)
    if last is not None and now - last <= _DAEMON_TIMEOUT:
        yield fine("dagster", f"its daemon is up; runs in the queue: {waiting}.")
        return
    last_seen = "was never started"
    if last is not None:
        last_seen = f"sent its last heartbeat at {last:%Y-%m-%d %H:%M} UTC"
    if waiting == 0 and (last is None or is_own):
        yield fine("dagster", f"its daemon {last_seen}; `batch-pipeline dev` starts it.")
        return
    text = (
        f"its daemon {last_seen}, so sensors, schedules and queued runs ({waiting}) do not "
        f"start. Start `batch-pipeline dev`, or the daemon of your deployment; "
        f"`batch-pipeline run` does not need it."
    )
    yield warning("dagster", text)


_SAMPLE_ROWS = 100_000
_CHEAP_ROWS = 1_000  # scanning these takes less than a millisecond
_INDEX_RATIO = 50
_PREFIX_CHARACTERS = 100  # of a text column; MariaDB indexes only a prefix of it


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterCost:
    """The numbers of sampled rows that cutting scans and that the filter keeps.

    `proposal` is a `CREATE INDEX` statement for the operator to review. It is set if the filter
    scans more than 50 times the rows that it keeps.
    """

    scanned: int
    kept: int
    proposal: str | None = None


def filter_cost(table: ReflectedMetaTable, after_id: int | None, high_watermark: int) -> FilterCost:
    """Return the filter's cost on the first 100,000 rows above `after_id` (None: from the start).

    Without a filter nothing is read. Rows that an existing index skips do not count as scanned. A
    view gets no proposal, since an index belongs to the tables that it reads.

    Raises:
        PipelineError: the meta table cannot be read.
    """
    if table.where is None or after_id == MAX_ID:
        return FilterCost(scanned=0, kept=0)
    first_id = MIN_ID if after_id is None else after_id + 1
    sampled, kept, last_id = _sample(table, table.where, first_id, high_watermark)
    if sampled == 0:
        return FilterCost(scanned=0, kept=0)
    if table.engine.dialect.name == "postgresql":
        scanned = _rows_scanned_by_cut(table, first_id, last_id)
    else:
        scanned = kept if _has_index(table, _leading_columns(table, table.where)) else sampled
    costly = scanned >= _CHEAP_ROWS and scanned > _INDEX_RATIO * kept
    proposal = _propose_index(table, table.where) if costly and not table.is_view else None
    return FilterCost(scanned=scanned, kept=kept, proposal=proposal)


def _sample(
    table: ReflectedMetaTable, where: Filter, first_id: int, high_watermark: int
) -> tuple[int, int, int]:
    fits = filter_expression(table.table, where, table.engine.dialect)
    matches = sa.case((fits, 1)).label("fits")
    bounds = (
        table.uid >= sa.literal(first_id, sa.BigInteger),
        table.uid <= sa.literal(high_watermark, sa.BigInteger),
    )
    rows = sa.select(table.uid.label("uid"), matches).where(*bounds).order_by(table.uid)
    row = rows.limit(_SAMPLE_ROWS).subquery().c
    query = sa.select(sa.func.count(), sa.func.count(row.fits), sa.func.max(row.uid))
    with read_one_statement(table.engine) as connection:
        sampled, kept, last_id = connection.execute(query).one()
    return sampled, kept, last_id


def _rows_scanned_by_cut(table: ReflectedMetaTable, first_id: int, last_id: int) -> int:
    """Return the number of rows read to cut the whole range as one batch."""
    values = {
        "first_id": first_id,
        "last_id": last_id,
        "max_weight": MAX_ID,
        "max_count": MAX_ID,
    }
    options = {"render_postcompile": True}
    compiled = table.queries.cut.compile(table.engine, compile_kwargs=options)
    statement = f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {compiled}"
    with read_one_statement(table.engine) as connection:
        result = connection.exec_driver_sql(statement, compiled.construct_params(values))
        explained = result.scalar_one()
    plan = json.loads(explained) if isinstance(explained, str) else explained
    return sum(
        int(node["Actual Loops"] * sum(node.get(counted, 0) for counted in _SCANNED))
        for node in _scan_nodes(plan[0]["Plan"])
    )


_SCANNED = ("Actual Rows", "Rows Removed by Filter", "Rows Removed by Index Recheck")


def _scan_nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the nodes of a plan that read rows of tables."""
    if "Relation Name" in node:
        yield node
    for inner in node.get("Plans", ()):
        yield from _scan_nodes(inner)


def _has_index(table: ReflectedMetaTable, leading: list[str]) -> bool:
    with read_transaction(table.engine) as connection:
        indexes = sa.inspect(connection).get_indexes(table.table.name, schema=table.table.schema)
    return any(index["column_names"][: len(leading)] == leading for index in indexes)


def _leading_columns(table: ReflectedMetaTable, where: Filter) -> list[str]:
    """Return the columns of an index on the filter's columns and, last, the id."""
    parts = where.parts if isinstance(where, AllOf) else (where,)
    one_value = (Operator.EQUAL, Operator.IS_NULL)
    fixed = [
        part.column for part in parts if isinstance(part, Condition) and part.operator in one_value
    ]
    names = dict.fromkeys(fixed or where.columns)
    return [*(name for name in names if name != table.columns.uid), table.columns.uid]


def _propose_index(table: ReflectedMetaTable, where: Filter) -> str:
    dialect = table.engine.dialect
    copied = table.table.to_metadata(sa.MetaData())
    options: dict[str, Any] = {}
    leading = [table.columns.uid]
    if dialect.name == "postgresql":
        if table.columns.weight not in {None, table.columns.uid}:
            options["postgresql_include"] = [table.columns.weight]
        options["postgresql_where"] = filter_expression(copied, where, dialect)
        # CONCURRENTLY does not block writers, but does not work on partitioned tables.
        partitioned = find_table(table.engine, table.canonical_name).is_partitioned
        options["postgresql_concurrently"] = not partitioned
    else:
        leading = _leading_columns(table, where)
        # TEXT, MEDIUMTEXT and others have no length, and no base class that is only theirs.
        texts = [name for name in leading if getattr(copied.c[name].type, "length", 0) is None]
        if dialect.name in {"mysql", "mariadb"}:
            options[f"{dialect.name}_length"] = dict.fromkeys(texts, _PREFIX_CHARACTERS)
    columns = [copied.c[name] for name in leading]
    index = sa.Index(_index_name(table, where), *columns, **options)
    text = str(sa.schema.CreateIndex(index).compile(dialect=dialect))
    # The compiler doubles percent signs for these drivers.
    return text.replace("%%", "%") if dialect.paramstyle in {"format", "pyformat"} else text


def _index_name(table: ReflectedMetaTable, where: Filter) -> str:
    """Derive a name shorter than 63 bytes from the table and a hash of the filter."""
    stem = table.table.name.encode()[:40].decode(errors="ignore")
    written = json.dumps(where.to_json(), sort_keys=True).encode()
    return f"{stem}_batches_{hashlib.sha256(written).hexdigest()[:8]}"
