"""Store the reason for each schema version: a record with a new column, or a declaration."""

from alembic import op

revision = "0003"
down_revision = "0002"

_SCHEMA_VERSION = """
ALTER TABLE batch_pipeline.schema_version
    ADD item_id bigint,
    ADD location text,
    ADD line bigint,
    ADD changes jsonb,
    ADD declared jsonb;
"""


def upgrade() -> None:
    """Add the column; the reasons for existing versions are unknown."""
    op.execute(_SCHEMA_VERSION)
