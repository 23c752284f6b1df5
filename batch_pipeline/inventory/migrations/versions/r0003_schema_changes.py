"""Schema versions that say why they are there: a record that showed a column, a declaration."""

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
    """Make room for where versions come from; of those that are there nobody knows."""
    op.execute(_SCHEMA_VERSION)
