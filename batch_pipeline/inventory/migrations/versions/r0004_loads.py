"""Add loads of published generations, and what was found out about targets."""

from alembic import op

revision = "0004"
down_revision = "0003"

_LOAD = """
CREATE TABLE batch_pipeline.load (
    id bigint GENERATED ALWAYS AS IDENTITY,
    attempt_id bigint NOT NULL,
    stream text NOT NULL,
    target text NOT NULL,
    number integer NOT NULL,
    token uuid NOT NULL,
    liveness_key bigint NOT NULL,
    status text NOT NULL,
    run_id text NOT NULL,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    renewed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    lease_until timestamptz NOT NULL,
    finished_at timestamptz,
    voided_at timestamptz,
    records bigint,
    state jsonb,
    exit_code integer,
    mode text,
    error text,
    log text,
    CONSTRAINT load_pkey PRIMARY KEY (id),
    CONSTRAINT load_attempt_id_fkey FOREIGN KEY (attempt_id) REFERENCES batch_pipeline.attempt (id),
    CONSTRAINT load_attempt_id_target_number_key UNIQUE (attempt_id, target, number),
    CONSTRAINT load_status_known
        CHECK (status IN ('running', 'succeeded', 'failed', 'interrupted')),
    CONSTRAINT load_end_has_a_time CHECK ((status = 'running') = (finished_at IS NULL))
);
CREATE UNIQUE INDEX load_once_per_target ON batch_pipeline.load (attempt_id, target)
    WHERE status = 'succeeded' AND voided_at IS NULL;
CREATE UNIQUE INDEX load_one_running_per_target ON batch_pipeline.load (stream, target)
    WHERE status = 'running';
CREATE INDEX load_stream_id_idx ON batch_pipeline.load (stream, id);
COMMENT ON TABLE batch_pipeline.load IS
    'Tries at loading published generations into targets, and what the targets said.';
"""

_TARGET_PROBE = """
CREATE TABLE batch_pipeline.target_probe (
    command text NOT NULL,
    version text NOT NULL,
    verdict jsonb NOT NULL,
    probed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT target_probe_pkey PRIMARY KEY (command, version)
);
COMMENT ON TABLE batch_pipeline.target_probe IS
    'Which messages Singer targets can read, found by looking into what is installed.';
"""


def upgrade() -> None:
    """Create the tables; earlier loads are unknown."""
    op.execute(_LOAD)
    op.execute(_TARGET_PROBE)
