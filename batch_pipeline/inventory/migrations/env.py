"""Run revisions on the connection that `migrate` opened, inside its transaction."""

from alembic import context

from batch_pipeline.inventory.tables import SCHEMA, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table_schema=SCHEMA,
    include_schemas=True,
)
context.run_migrations()
