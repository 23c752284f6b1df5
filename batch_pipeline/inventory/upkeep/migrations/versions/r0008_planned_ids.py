"""A batch whose range has gaps records which ids it was planned with."""

from alembic import op

revision = "0008"
down_revision = "0006"

_PLANNED_IDS = """
ALTER TABLE batch_pipeline.batch
    ADD COLUMN id_runs bigint[];
"""


def upgrade() -> None:
    """Add the column: batches that are there have none, and hold all of their range."""
    op.execute(_PLANNED_IDS)
