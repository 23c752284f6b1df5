"""Store the width of the ids in partition keys per job; describe all tables in plain words."""

from alembic import op

revision = "0009"
down_revision = "0008"

_KEY_DIGITS = """
ALTER TABLE batch_pipeline.job
    ADD COLUMN key_digits smallint NOT NULL DEFAULT 12;
ALTER TABLE batch_pipeline.job
    ALTER COLUMN key_digits SET DEFAULT 8;
"""

_COMMENTS = """
COMMENT ON TABLE batch_pipeline.item IS
    'Files that batch-pipeline registers itself: the meta table of streams with a landing.';
COMMENT ON TABLE batch_pipeline.job IS
    'One bookmark over a meta table; no item is in two live batches of the same job.';
COMMENT ON TABLE batch_pipeline.bookmark IS
    'Runs of planned ids; only jobs that acquire windows of ids have several rows.';
COMMENT ON TABLE batch_pipeline.batch IS
    'Planned id ranges or lists of ids; never changed after planning.';
COMMENT ON TABLE batch_pipeline.batch_state IS
    'State of each batch, derived from its attempts; workers find their work here.';
COMMENT ON TABLE batch_pipeline.schema_version IS
    'Columns of a stream''s records; each version is at least as wide as the previous one.';
COMMENT ON TABLE batch_pipeline.attempt IS
    'Attempts to encode a batch; the row of a succeeded attempt is the commit point.';
COMMENT ON TABLE batch_pipeline.part_file IS
    'Part files of published attempts.';
COMMENT ON TABLE batch_pipeline.attempt_item IS
    'Records read, written and quarantined of each item in a published attempt.';
COMMENT ON TABLE batch_pipeline.load IS
    'Loads of published generations into targets, with the output of the targets.';
COMMENT ON TABLE batch_pipeline.target_probe IS
    'Kinds of messages that installed Singer targets can read.';
COMMENT ON TABLE batch_pipeline.ceiling_candidate IS
    'State of the high watermarks of users'' meta tables between two polls.';
COMMENT ON VIEW batch_pipeline.published IS
    'Batches that each job has published, in publish order; the meta table of chained jobs.';
"""


def upgrade() -> None:
    """Add the column: existing jobs keep keys of 12 digits, new ones have 8."""
    op.execute(_KEY_DIGITS)
    op.execute(_COMMENTS)
