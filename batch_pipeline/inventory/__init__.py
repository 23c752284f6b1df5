"""The inventory: jobs, items, batches, attempts and manifests in Postgres through SQLAlchemy Core.

Everything that speaks SQL lives here, and nothing here knows Dagster, Spark or a file format. Its
rooms, around the tables, their locks and `database`, which opens them all:

server   the PostgreSQL server, embedded or given: connections, what goes wrong
upkeep   revisions of the schema, the doctor's looks; roles.sql has roles and rights
meta     meta tables: the product's and users', ceilings, cuts, filters
jobs     jobs by name: bookmarks, control, backfills, late arrivals
work     batches, attempts with token and lease, manifests
"""
