"""Store the width of the ids in partition keys per job."""

from alembic import op

revision = "0009"
down_revision = "0008"

_KEY_DIGITS = """
ALTER TABLE batch_pipeline.job
    ADD COLUMN key_digits smallint NOT NULL DEFAULT 12;
ALTER TABLE batch_pipeline.job
    ALTER COLUMN key_digits SET DEFAULT 8;
"""


def upgrade() -> None:
    """Add the column: existing jobs keep keys of 12 digits, new ones have 8."""
    op.execute(_KEY_DIGITS)
