"""The inventory: jobs, items, batches, attempts and manifests in Postgres through SQLAlchemy Core.

Everything that speaks SQL lives here, and nothing here knows Dagster, Spark or a file format.
"""
