"""Every table of the inventory. Ids and weights are `bigint`, times `timestamptz`.

The database enforces the invariants. Possible violations map to domain errors by constraint name.
"""

from collections.abc import Collection
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

SCHEMA = "batch_pipeline"
NON_OVERLAP = "batch_ranges_do_not_overlap"
FILE_OF_RANGE = "split_part(location, '#', 1)"
IS_RANGE = "strpos(location, '#') > 0"
UNFINISHED = "state IN ('planned', 'failed', 'interrupted', 'dead')"

metadata = sa.MetaData(
    schema=SCHEMA,
    naming_convention={
        "pk": "%(table_name)s_pkey",
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
        "fk": "%(table_name)s_%(column_0_name)s_fkey",
        "ck": "%(table_name)s_%(constraint_name)s",
    },
)

_now = sa.text("clock_timestamp()")


def _time(name: str, **options: object) -> sa.Column[object]:
    return sa.Column(name, sa.TIMESTAMP(timezone=True), **options)  # type: ignore[arg-type] # one call for nullable and default


item = sa.Table(
    "item",
    metadata,
    sa.Column("stream", sa.Text, primary_key=True),
    sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("location", sa.Text, nullable=False),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
    _time("modified_at", nullable=False),
    sa.Column("etag", sa.Text),
    _time("registered_at", nullable=False, server_default=_now),
    sa.UniqueConstraint("stream", "location"),
    sa.CheckConstraint("size_bytes >= 0", name="size_not_negative"),
    sa.Index("item_file_idx", "stream", sa.text(FILE_OF_RANGE), postgresql_where=sa.text(IS_RANGE)),
    comment="Files that batch-pipeline registers itself: the meta table of streams with a landing.",
)

job = sa.Table(
    "job",
    metadata,
    sa.Column("id", sa.Integer, sa.Identity(always=True), primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("meta_table", sa.Text, nullable=False),
    sa.Column("publish_count", sa.BigInteger, nullable=False, server_default=sa.text("0")),
    _time("created_at", nullable=False, server_default=_now),
    sa.Column("kind", sa.Text, nullable=False, server_default=sa.text("'incremental'")),
    sa.Column("stream", sa.Text),
    sa.Column("parent_id", sa.ForeignKey("batch_pipeline.job.id")),
    sa.Column("config", pg.JSONB, nullable=False, server_default=sa.text("'{}'")),
    sa.Column("max_attempts", sa.Integer, nullable=False, server_default=sa.text("3")),
    sa.Column("bisect", sa.Boolean, nullable=False, server_default=sa.false()),
    _time("paused_at"),
    sa.Column("paused_reason", sa.Text),
    sa.Column("key_digits", sa.SmallInteger, nullable=False, server_default=sa.text("8")),
    sa.UniqueConstraint("name", "meta_table", name="job_name_meta_table_key"),
    sa.CheckConstraint("kind IN ('incremental', 'backfill', 'late')", name="kind_known"),
    sa.CheckConstraint("max_attempts > 0", name="max_attempts_positive"),
    comment="One bookmark over a meta table; no item is in two live batches of the same job.",
)
sa.Index(
    "job_one_per_stream",
    job.c.stream,
    unique=True,
    postgresql_where=job.c.kind == "incremental",
)

sa.Index("job_parent_id_idx", job.c.parent_id)

bookmark = sa.Table(
    "bookmark",
    metadata,
    sa.Column("job_id", sa.ForeignKey(job.c.id), primary_key=True),
    sa.Column("first_id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("last_id", sa.BigInteger, nullable=False),
    sa.CheckConstraint("first_id <= last_id", name="range_not_empty"),
    comment="Runs of planned ids; only jobs that acquire windows of ids have several rows.",
)

batch = sa.Table(
    "batch",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
    sa.Column("job_id", sa.ForeignKey(job.c.id), nullable=False),
    sa.Column("first_id", sa.BigInteger, nullable=False),
    sa.Column("last_id", sa.BigInteger, nullable=False),
    sa.Column("weight", sa.BigInteger, nullable=False),
    sa.Column("item_count", sa.BigInteger, nullable=False),
    sa.Column("oversized", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("config", pg.JSONB, nullable=False),
    _time("planned_at", nullable=False, server_default=_now),
    _time("superseded_at"),
    sa.Column("parent_id", sa.ForeignKey("batch_pipeline.batch.id")),
    sa.Column("item_ids", sa.ARRAY(sa.BigInteger)),
    # First ids and last ids of the runs that existed when the range was planned. NULL if the range
    # had no gaps, and in batches planned before revision 0008.
    sa.Column("id_runs", sa.ARRAY(sa.BigInteger, dimensions=2)),
    sa.CheckConstraint("first_id <= last_id", name="range_not_empty"),
    # The largest bigint has no successor, so a range that ends there is written as unbounded.
    pg.ExcludeConstraint(
        (sa.text("int4range(job_id, job_id, '[]')"), "&&"),
        (sa.text("int8range(first_id, nullif(last_id, 9223372036854775807), '[]')"), "&&"),
        name=NON_OVERLAP,
        using="gist",
        where=sa.text("superseded_at IS NULL AND item_ids IS NULL"),
    ),
    sa.Index("batch_job_id_first_id_idx", "job_id", "first_id"),
    comment="Planned id ranges or lists of ids; never changed after planning.",
)

batch_state = sa.Table(
    "batch_state",
    metadata,
    sa.Column("batch_id", sa.ForeignKey(batch.c.id), primary_key=True, autoincrement=False),
    sa.Column("job_id", sa.ForeignKey(job.c.id), nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False, server_default=sa.text("0")),
    sa.Column("forgiven", sa.Integer, nullable=False, server_default=sa.text("0")),
    sa.Column("generation", sa.Integer),
    sa.CheckConstraint(
        "state IN ('planned', 'running', 'published', 'failed', 'interrupted', 'dead', "
        "'cancelled', 'superseded')",
        name="state_known",
    ),
    comment="State of each batch, derived from its attempts; workers find their work here.",
)
sa.Index(
    "batch_state_unfinished",
    batch_state.c.job_id,
    batch_state.c.state,
    batch_state.c.batch_id,
    postgresql_where=sa.text(UNFINISHED),
)
sa.Index(
    "batch_state_running",
    batch_state.c.job_id,
    postgresql_where=sa.text("state = 'running'"),
)

schema_version = sa.Table(
    "schema_version",
    metadata,
    sa.Column("job_id", sa.ForeignKey(job.c.id), primary_key=True),
    sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("columns", pg.JSONB, nullable=False),
    _time("created_at", nullable=False, server_default=_now),
    sa.Column("item_id", sa.BigInteger),
    sa.Column("location", sa.Text),
    sa.Column("line", sa.BigInteger),
    sa.Column("changes", pg.JSONB),
    sa.Column("declared", pg.JSONB),
    comment="Columns of a stream's records; each version is at least as wide as the previous one.",
)

attempt = sa.Table(
    "attempt",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
    sa.Column("batch_id", sa.ForeignKey(batch.c.id), nullable=False),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("token", pg.UUID(as_uuid=True), nullable=False, unique=True),
    sa.Column("liveness_key", sa.BigInteger, nullable=False),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("run_id", sa.Text, nullable=False),
    _time("started_at", nullable=False, server_default=_now),
    _time("renewed_at", nullable=False, server_default=_now),
    _time("lease_until", nullable=False),
    _time("finished_at"),
    sa.Column("error", sa.Text),
    sa.Column("generation", sa.Integer),
    sa.Column("publish_number", sa.BigInteger),
    sa.Column("schema_version", sa.Integer),
    sa.Column("encoding", pg.JSONB),
    sa.Column("key_properties", pg.JSONB),
    sa.Column("facts", pg.JSONB),
    sa.Column("pointer_uri", sa.Text),
    sa.Column("result", pg.JSONB),
    sa.Column("logging", sa.Text),
    sa.Column("seen", pg.JSONB),
    sa.UniqueConstraint("batch_id", "number"),
    sa.UniqueConstraint("batch_id", "generation"),
    sa.CheckConstraint(
        "status IN ('running', 'succeeded', 'failed', 'abandoned', 'cancelled')",
        name="status_known",
    ),
    sa.CheckConstraint("(status = 'running') = (finished_at IS NULL)", name="end_has_a_time"),
    sa.CheckConstraint(
        "(status = 'succeeded') = (generation IS NOT NULL AND publish_number IS NOT NULL)",
        name="success_is_published",
    ),
    comment="Attempts to encode a batch; the row of a succeeded attempt is the commit point.",
)
sa.Index(
    "attempt_one_running_per_batch",
    attempt.c.batch_id,
    unique=True,
    postgresql_where=attempt.c.status == "running",
)
sa.Index("attempt_publish_number_idx", attempt.c.publish_number)

part_file = sa.Table(
    "part_file",
    metadata,
    sa.Column("attempt_id", sa.ForeignKey(attempt.c.id), primary_key=True),
    sa.Column("quarantine", sa.Boolean, primary_key=True),
    sa.Column("position", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("uri", sa.Text, nullable=False, unique=True),
    sa.Column("records", sa.BigInteger, nullable=False),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
    sa.Column("sha256", sa.Text, nullable=False),
    comment="Part files of published attempts.",
)

attempt_item = sa.Table(
    "attempt_item",
    metadata,
    sa.Column("attempt_id", sa.ForeignKey(attempt.c.id), primary_key=True),
    sa.Column("item_id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("read", sa.BigInteger, nullable=False),
    sa.Column("written", sa.BigInteger, nullable=False),
    sa.Column("filtered", sa.BigInteger, nullable=False),
    sa.Column("quarantined", sa.BigInteger, nullable=False),
    sa.Column("bad_file", sa.Text),
    sa.Column("read_etag", sa.Text),
    sa.Column("read_version", sa.Text),
    sa.CheckConstraint("read = written + filtered + quarantined", name="records_conserved"),
    comment="Records read, written and quarantined of each item in a published attempt.",
)

load = sa.Table(
    "load",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
    sa.Column("attempt_id", sa.ForeignKey(attempt.c.id), nullable=False),
    sa.Column("stream", sa.Text, nullable=False),
    sa.Column("target", sa.Text, nullable=False),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("token", pg.UUID(as_uuid=True), nullable=False),
    sa.Column("liveness_key", sa.BigInteger, nullable=False),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("run_id", sa.Text, nullable=False),
    _time("started_at", nullable=False, server_default=_now),
    _time("renewed_at", nullable=False, server_default=_now),
    _time("lease_until", nullable=False),
    _time("finished_at"),
    _time("voided_at"),
    sa.Column("records", sa.BigInteger),
    sa.Column("state", pg.JSONB),
    sa.Column("exit_code", sa.Integer),
    sa.Column("mode", sa.Text),
    sa.Column("error", sa.Text),
    sa.Column("log", sa.Text),
    sa.UniqueConstraint("attempt_id", "target", "number"),
    sa.CheckConstraint(
        "status IN ('running', 'succeeded', 'failed', 'interrupted')", name="status_known"
    ),
    sa.CheckConstraint("(status = 'running') = (finished_at IS NULL)", name="end_has_a_time"),
    comment="Loads of published generations into targets, with the output of the targets.",
)
sa.Index(
    "load_once_per_target",
    load.c.attempt_id,
    load.c.target,
    unique=True,
    postgresql_where=sa.text("status = 'succeeded' AND voided_at IS NULL"),
)
sa.Index(
    "load_one_running_per_target",
    load.c.stream,
    load.c.target,
    unique=True,
    postgresql_where=load.c.status == "running",
)
sa.Index("load_stream_id_idx", load.c.stream, load.c.id)

# The load counts: it succeeded and was not voided.
HAS_LOAD = sa.and_(load.c.status == "succeeded", load.c.voided_at.is_(None))

# Unused by this version; kept because processes of 0.1.0 write to it. A later revision drops it.
sa.Table(
    "target_probe",
    metadata,
    sa.Column("command", sa.Text, primary_key=True),
    sa.Column("version", sa.Text, primary_key=True),
    sa.Column("verdict", pg.JSONB, nullable=False),
    _time("probed_at", nullable=False, server_default=_now),
    comment="Kinds of messages that installed Singer targets can read.",
)

ceiling_candidate = sa.Table(
    "ceiling_candidate",
    metadata,
    sa.Column("scope", sa.Text, primary_key=True),
    sa.Column("meta_table", sa.Text, primary_key=True),
    sa.Column("state", pg.JSONB, nullable=False),
    _time("saved_at", nullable=False, server_default=_now),
    comment="State of the high watermarks of users' meta tables between two polls.",
)


def is_any_of(column: sa.ColumnElement[Any], values: Collection[Any]) -> sa.ColumnElement[bool]:
    """Compare with one array, because a statement takes at most 65,535 parameters."""
    return column == sa.any_(sa.cast(list(values), sa.ARRAY(column.type)))


batches_of_jobs = batch.join(job, job.c.id == batch.c.job_id)
batches_with_states = batches_of_jobs.join(batch_state, batch_state.c.batch_id == batch.c.id)
attempts_of_jobs = attempt.join(batch, batch.c.id == attempt.c.batch_id).join(
    job, job.c.id == batch.c.job_id
)
