"""The schema of release 0.1.0, the oldest that can be upgraded."""

revision = "0006"
down_revision = None
