"""Create items, jobs, batches, attempts, their files, and a view over all of them."""

from alembic import op

revision = "0001"
down_revision = None

_TABLES = """
CREATE TABLE batch_pipeline.item (
    stream text NOT NULL,
    id bigint NOT NULL,
    location text NOT NULL,
    size_bytes bigint NOT NULL,
    modified_at timestamptz NOT NULL,
    etag text,
    registered_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT item_pkey PRIMARY KEY (stream, id),
    CONSTRAINT item_stream_location_key UNIQUE (stream, location),
    CONSTRAINT item_size_not_negative CHECK (size_bytes >= 0)
);
COMMENT ON TABLE batch_pipeline.item IS
    'The meta table of streams whose files this product registers itself.';

CREATE TABLE batch_pipeline.job (
    id integer GENERATED ALWAYS AS IDENTITY,
    name text NOT NULL,
    meta_table text NOT NULL,
    last_id bigint NOT NULL DEFAULT 0,
    publish_count bigint NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT job_pkey PRIMARY KEY (id),
    CONSTRAINT job_name_key UNIQUE (name)
);
COMMENT ON TABLE batch_pipeline.job IS
    'One bookmark over a meta table: everything up to last_id is planned.';

CREATE TABLE batch_pipeline.batch (
    id bigint GENERATED ALWAYS AS IDENTITY,
    job_id integer NOT NULL,
    first_id bigint NOT NULL,
    last_id bigint NOT NULL,
    weight bigint NOT NULL,
    item_count bigint NOT NULL,
    oversized boolean NOT NULL DEFAULT false,
    config jsonb NOT NULL,
    planned_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT batch_pkey PRIMARY KEY (id),
    CONSTRAINT batch_job_id_fkey FOREIGN KEY (job_id) REFERENCES batch_pipeline.job (id),
    CONSTRAINT batch_job_id_first_id_key UNIQUE (job_id, first_id),
    CONSTRAINT batch_range_not_empty CHECK (first_id <= last_id),
    CONSTRAINT batch_ranges_do_not_overlap EXCLUDE USING gist (
        int4range(job_id, job_id, '[]') WITH &&,
        int8range(first_id, nullif(last_id, 9223372036854775807), '[]') WITH &&
    )
);
COMMENT ON TABLE batch_pipeline.batch IS 'Planned id ranges; never changed after planning.';

CREATE TABLE batch_pipeline.schema_version (
    job_id integer NOT NULL,
    version integer NOT NULL,
    columns jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT schema_version_pkey PRIMARY KEY (job_id, version),
    CONSTRAINT schema_version_job_id_fkey FOREIGN KEY (job_id) REFERENCES batch_pipeline.job (id)
);
COMMENT ON TABLE batch_pipeline.schema_version IS
    'The columns of a stream''s records, widening from version to version.';

CREATE TABLE batch_pipeline.attempt (
    id bigint GENERATED ALWAYS AS IDENTITY,
    batch_id bigint NOT NULL,
    number integer NOT NULL,
    token uuid NOT NULL,
    liveness_key bigint NOT NULL,
    status text NOT NULL,
    run_id text NOT NULL,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    renewed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    lease_until timestamptz NOT NULL,
    finished_at timestamptz,
    error text,
    generation integer,
    publish_number bigint,
    schema_version integer,
    encoding jsonb,
    key_properties jsonb,
    facts jsonb,
    pointer_uri text,
    CONSTRAINT attempt_pkey PRIMARY KEY (id),
    CONSTRAINT attempt_batch_id_fkey FOREIGN KEY (batch_id) REFERENCES batch_pipeline.batch (id),
    CONSTRAINT attempt_token_key UNIQUE (token),
    CONSTRAINT attempt_batch_id_number_key UNIQUE (batch_id, number),
    CONSTRAINT attempt_batch_id_generation_key UNIQUE (batch_id, generation),
    CONSTRAINT attempt_status_known CHECK (
        status IN ('running', 'succeeded', 'failed', 'abandoned', 'cancelled')),
    CONSTRAINT attempt_end_has_a_time CHECK ((status = 'running') = (finished_at IS NULL)),
    CONSTRAINT attempt_success_is_published CHECK (
        (status = 'succeeded') = (generation IS NOT NULL AND publish_number IS NOT NULL))
);
CREATE UNIQUE INDEX attempt_one_running_per_batch ON batch_pipeline.attempt (batch_id)
    WHERE status = 'running';
COMMENT ON TABLE batch_pipeline.attempt IS
    'Tries at encoding a batch; the row of a succeeded one is the commit point.';

CREATE TABLE batch_pipeline.part_file (
    attempt_id bigint NOT NULL,
    quarantine boolean NOT NULL,
    position integer NOT NULL,
    uri text NOT NULL,
    records bigint NOT NULL,
    size_bytes bigint NOT NULL,
    sha256 text NOT NULL,
    CONSTRAINT part_file_pkey PRIMARY KEY (attempt_id, quarantine, position),
    CONSTRAINT part_file_attempt_id_fkey FOREIGN KEY (attempt_id)
        REFERENCES batch_pipeline.attempt (id),
    CONSTRAINT part_file_uri_key UNIQUE (uri)
);
COMMENT ON TABLE batch_pipeline.part_file IS
    'Files of published attempts, as the tasks that wrote them reported them.';

CREATE TABLE batch_pipeline.attempt_item (
    attempt_id bigint NOT NULL,
    item_id bigint NOT NULL,
    read bigint NOT NULL,
    written bigint NOT NULL,
    filtered bigint NOT NULL,
    quarantined bigint NOT NULL,
    bad_file text,
    CONSTRAINT attempt_item_pkey PRIMARY KEY (attempt_id, item_id),
    CONSTRAINT attempt_item_attempt_id_fkey FOREIGN KEY (attempt_id)
        REFERENCES batch_pipeline.attempt (id),
    CONSTRAINT attempt_item_records_conserved CHECK (read = written + filtered + quarantined)
);
COMMENT ON TABLE batch_pipeline.attempt_item IS
    'Where the records of each item went in a published attempt.';
"""

_VIEW = """
CREATE VIEW batch_pipeline.inventory AS
SELECT attempt.id,
       job.meta_table,
       job.name AS job,
       attempt.run_id AS job_identifier,
       coalesce((
           SELECT json_agg(part_file.uri ORDER BY part_file.position)
             FROM batch_pipeline.part_file
            WHERE part_file.attempt_id = attempt.id AND NOT part_file.quarantine
       ), '[]'::json) AS job_result_item,
       attempt.started_at AS processing_start,
       attempt.finished_at AS processing_end,
       batch.first_id AS batch_id_start,
       batch.last_id AS batch_id_end,
       batch.weight AS batch_weight,
       batch.item_count AS batch_count,
       attempt.number AS attempt,
       attempt.status,
       attempt.error AS logging,
       batch.config::json AS config
  FROM batch_pipeline.attempt
  JOIN batch_pipeline.batch ON batch.id = attempt.batch_id
  JOIN batch_pipeline.job ON job.id = batch.job_id;
COMMENT ON VIEW batch_pipeline.inventory IS 'One row per attempt, for people and reports.';
"""


def upgrade() -> None:
    """Create the tables and the view; `migrate` has created the schema."""
    op.execute(_TABLES)
    op.execute(_VIEW)
