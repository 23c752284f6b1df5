"""The inventory: jobs, items, batches, attempts and manifests in Postgres through SQLAlchemy Core.

All SQL of the product is in this package. It knows neither Dagster nor Spark nor a file format.
`tables` has the schema, `database` opens the inventory for the layers above, and `meta_tables` has
the tables that list items: the product's own and those of users.
"""
