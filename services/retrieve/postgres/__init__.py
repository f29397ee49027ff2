"""Collections on a PostgreSQL server with pgvector.  Imported only if the settings name a server."""
