"""Databases for all stores: SQLite and PostgreSQL, migrations, and the feed of changes."""
