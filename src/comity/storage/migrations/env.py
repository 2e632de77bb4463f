"""The environment of Alembic: its steps use the connection that is already open."""

from alembic import context

from comity.storage.database import METADATA, SCHEMA_TABLE

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    version_table=SCHEMA_TABLE,
)
context.run_migrations()
