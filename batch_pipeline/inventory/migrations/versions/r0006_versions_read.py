"""Store which version of an object was read with the counters of its item."""

from alembic import op

revision = "0006"
down_revision = "0005"

_VERSIONS_READ = """
ALTER TABLE batch_pipeline.attempt_item
    ADD COLUMN read_etag text,
    ADD COLUMN read_version text;
"""


def upgrade() -> None:
    """Add the columns; they are null for files on disks and for earlier attempts."""
    op.execute(_VERSIONS_READ)
