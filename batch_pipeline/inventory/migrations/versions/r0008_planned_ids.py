"""Store the planned ids of batches with gaps."""

from alembic import op

revision = "0008"
down_revision = "0007"

_PLANNED_IDS = """
ALTER TABLE batch_pipeline.batch
    ADD COLUMN id_runs bigint[];
"""


def upgrade() -> None:
    """Add the column; for existing batches it is null, and they include all of their range."""
    op.execute(_PLANNED_IDS)
