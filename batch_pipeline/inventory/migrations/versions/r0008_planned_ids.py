"""Store the planned ids of batches with gaps; `logging` is the user's own text."""

from alembic import op

revision = "0008"
down_revision = "0007"

_PLANNED_IDS = """
ALTER TABLE batch_pipeline.batch
    ADD COLUMN id_runs bigint[];
"""

# Only `logging` differs: it is the user's own text, or else the error.
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
       coalesce(attempt.logging, attempt.error) AS logging,
       batch.config::json AS config,
       batch.id AS batch_id
  FROM batch_pipeline.attempt
  JOIN batch_pipeline.batch ON batch.id = attempt.batch_id
  JOIN batch_pipeline.job ON job.id = batch.job_id;
"""


def upgrade() -> None:
    """Add the column; for existing batches it is null, and they include all of their range."""
    op.execute(_PLANNED_IDS)
    op.execute(_VIEW)
