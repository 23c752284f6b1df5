"""Alembic's environment and one file per revision."""
