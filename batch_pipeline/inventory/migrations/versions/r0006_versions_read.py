"""Which version of an object was read stands beside the counters of its item."""

from alembic import op

revision = "0006"
down_revision = "0005"

_VERSIONS_READ = """
ALTER TABLE batch_pipeline.attempt_item
    ADD COLUMN read_etag text,
    ADD COLUMN read_version text;
"""


def upgrade() -> None:
    """Add the columns: of what was read from disks, and before, they say nothing."""
    op.execute(_VERSIONS_READ)
