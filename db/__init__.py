"""Metadata in PostgreSQL: models, migrations and the queries of the managers. Never per-message state."""
