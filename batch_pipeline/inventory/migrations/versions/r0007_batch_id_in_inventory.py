"""Add the batch of each attempt to the view `inventory`."""

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Do nothing: `migrate` replaces the views after the last revision."""
