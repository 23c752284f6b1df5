"""Support jobs on any meta table: bookmarks for windows, batch states, lists of items."""

from alembic import op

revision = "0002"
down_revision = "0001"

_JOB = """
ALTER TABLE batch_pipeline.job
    DROP CONSTRAINT job_name_key,
    ADD kind text NOT NULL DEFAULT 'incremental',
    ADD stream text,
    ADD parent_id integer,
    ADD config jsonb NOT NULL DEFAULT '{}',
    ADD max_attempts integer NOT NULL DEFAULT 3,
    ADD bisect boolean NOT NULL DEFAULT false,
    ADD paused_at timestamptz,
    ADD paused_reason text,
    ADD CONSTRAINT job_parent_id_fkey FOREIGN KEY (parent_id) REFERENCES batch_pipeline.job (id),
    ADD CONSTRAINT job_name_meta_table_key UNIQUE (name, meta_table),
    ADD CONSTRAINT job_kind_known CHECK (kind IN ('incremental', 'backfill', 'late')),
    ADD CONSTRAINT job_max_attempts_positive CHECK (max_attempts > 0);
UPDATE batch_pipeline.job SET stream = name;
CREATE UNIQUE INDEX job_one_per_stream ON batch_pipeline.job (stream) WHERE kind = 'incremental';
CREATE INDEX job_parent_id_idx ON batch_pipeline.job (parent_id);
COMMENT ON TABLE batch_pipeline.job IS
    'A name for work on a meta table; no item is in two live batches of one job.';

CREATE TABLE batch_pipeline.bookmark (
    job_id integer NOT NULL,
    first_id bigint NOT NULL,
    last_id bigint NOT NULL,
    CONSTRAINT bookmark_pkey PRIMARY KEY (job_id, first_id),
    CONSTRAINT bookmark_job_id_fkey FOREIGN KEY (job_id) REFERENCES batch_pipeline.job (id),
    CONSTRAINT bookmark_range_not_empty CHECK (first_id <= last_id)
);
COMMENT ON TABLE batch_pipeline.bookmark IS
    'Runs of ids that are planned; only windows leave a job more than one.';
INSERT INTO batch_pipeline.bookmark (job_id, first_id, last_id)
SELECT id, -9223372036854775808, last_id FROM batch_pipeline.job WHERE last_id > 0;
ALTER TABLE batch_pipeline.job DROP COLUMN last_id;
"""

_BATCH = """
ALTER TABLE batch_pipeline.batch
    DROP CONSTRAINT batch_job_id_first_id_key,
    DROP CONSTRAINT batch_ranges_do_not_overlap,
    ADD superseded_at timestamptz,
    ADD parent_id bigint,
    ADD item_ids bigint[],
    ADD CONSTRAINT batch_parent_id_fkey FOREIGN KEY (parent_id)
        REFERENCES batch_pipeline.batch (id),
    ADD CONSTRAINT batch_ranges_do_not_overlap EXCLUDE USING gist (
        int4range(job_id, job_id, '[]') WITH &&,
        int8range(first_id, nullif(last_id, 9223372036854775807), '[]') WITH &&
    ) WHERE (superseded_at IS NULL AND item_ids IS NULL);
CREATE INDEX batch_job_id_first_id_idx ON batch_pipeline.batch (job_id, first_id);
COMMENT ON TABLE batch_pipeline.batch IS
    'Planned id ranges, or lists of ids; never changed after planning.';

ALTER TABLE batch_pipeline.attempt ADD result jsonb, ADD logging text, ADD seen jsonb;

CREATE TABLE batch_pipeline.batch_state (
    batch_id bigint NOT NULL,
    job_id integer NOT NULL,
    state text NOT NULL,
    attempts integer NOT NULL DEFAULT 0,
    forgiven integer NOT NULL DEFAULT 0,
    generation integer,
    CONSTRAINT batch_state_pkey PRIMARY KEY (batch_id),
    CONSTRAINT batch_state_batch_id_fkey FOREIGN KEY (batch_id)
        REFERENCES batch_pipeline.batch (id),
    CONSTRAINT batch_state_job_id_fkey FOREIGN KEY (job_id) REFERENCES batch_pipeline.job (id),
    CONSTRAINT batch_state_state_known CHECK (
        state IN ('planned', 'running', 'published', 'failed', 'interrupted', 'dead',
                  'cancelled', 'superseded'))
);
CREATE INDEX batch_state_unfinished ON batch_pipeline.batch_state (job_id, state, batch_id)
    WHERE state IN ('planned', 'failed', 'interrupted', 'dead');
CREATE INDEX batch_state_running ON batch_pipeline.batch_state (job_id) WHERE state = 'running';
COMMENT ON TABLE batch_pipeline.batch_state IS
    'Where each batch stands: what its attempts say, kept for those who look for work.';
INSERT INTO batch_pipeline.batch_state (batch_id, job_id, state, attempts, generation)
SELECT batch.id, batch.job_id,
       CASE WHEN latest.status IS NULL THEN 'planned'
            WHEN latest.status = 'running' THEN 'running'
            WHEN published.generation IS NOT NULL THEN 'published'
            WHEN latest.status = 'failed' THEN 'failed'
            ELSE 'interrupted' END,
       coalesce(latest.number, 0), published.generation
  FROM batch_pipeline.batch
  LEFT JOIN LATERAL (
        SELECT number, status FROM batch_pipeline.attempt
         WHERE batch_id = batch.id ORDER BY number DESC LIMIT 1) latest ON true
  LEFT JOIN LATERAL (
        SELECT max(generation) AS generation FROM batch_pipeline.attempt
         WHERE batch_id = batch.id) published ON true;

CREATE TABLE batch_pipeline.ceiling_candidate (
    scope text NOT NULL,
    meta_table text NOT NULL,
    state jsonb NOT NULL,
    saved_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT ceiling_candidate_pkey PRIMARY KEY (scope, meta_table)
);
COMMENT ON TABLE batch_pipeline.ceiling_candidate IS
    'What ceilings of users'' meta tables remember between looks.';
"""

_VIEW = """
CREATE OR REPLACE VIEW batch_pipeline.inventory AS
SELECT attempt.id,
       job.meta_table,
       job.name AS job,
       nullif(attempt.run_id, '') AS job_identifier,
       coalesce(attempt.result::json, (
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
       nullif(concat_ws(E'\\n', attempt.logging, attempt.error), '') AS logging,
       batch.config::json AS config
  FROM batch_pipeline.attempt
  JOIN batch_pipeline.batch ON batch.id = attempt.batch_id
  JOIN batch_pipeline.job ON job.id = batch.job_id;

CREATE INDEX attempt_publish_number_idx ON batch_pipeline.attempt (publish_number);
CREATE VIEW batch_pipeline.published AS
SELECT origin.job,
       attempt.publish_number,
       coalesce(attempt.result::json, (
           SELECT json_agg(part_file.uri ORDER BY part_file.position)
             FROM batch_pipeline.part_file
            WHERE part_file.attempt_id = attempt.id AND NOT part_file.quarantine
       ), '[]'::json) AS job_result_item,
       origin.batch_weight,
       origin.batch_count,
       origin.batch_id_start,
       origin.batch_id_end,
       attempt.generation,
       attempt.finished_at AS published_at,
       origin.meta_table
  FROM batch_pipeline.attempt
 CROSS JOIN LATERAL (
        SELECT job.name AS job, batch.weight AS batch_weight, batch.item_count AS batch_count,
               batch.first_id AS batch_id_start, batch.last_id AS batch_id_end, job.meta_table
          FROM batch_pipeline.batch
          JOIN batch_pipeline.job ON job.id = batch.job_id
         WHERE batch.id = attempt.batch_id
        OFFSET 0 -- else the planner may begin with all batches of a job instead of the numbers
       ) origin
 WHERE attempt.publish_number IS NOT NULL;
COMMENT ON VIEW batch_pipeline.published IS
    'What each job has published, in publish order: the meta table of jobs that go on from there.';
"""


def upgrade() -> None:
    """Move bookmarks to a table of their own, and store the state of every batch."""
    op.execute(_JOB)
    op.execute(_BATCH)
    op.execute(_VIEW)
