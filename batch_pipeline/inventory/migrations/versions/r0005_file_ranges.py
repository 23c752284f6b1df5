"""Items that are ranges of files are found by their file."""

from alembic import op

revision = "0005"
down_revision = "0004"

_ITEM_FILE = """
CREATE INDEX item_file_idx
    ON batch_pipeline.item (stream, split_part(location, '#', 1))
    WHERE strpos(location, '#') > 0;
"""


def upgrade() -> None:
    """Index the ranges: none are there yet."""
    op.execute(_ITEM_FILE)
