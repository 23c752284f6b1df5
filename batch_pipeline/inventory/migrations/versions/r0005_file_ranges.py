"""Index items that are byte ranges by their file."""

from alembic import op

revision = "0005"
down_revision = "0004"

_ITEM_FILE = """
CREATE INDEX item_file_idx
    ON batch_pipeline.item (stream, split_part(location, '#', 1))
    WHERE strpos(location, '#') > 0;
"""


def upgrade() -> None:
    """Create the index; there are no ranges yet."""
    op.execute(_ITEM_FILE)
