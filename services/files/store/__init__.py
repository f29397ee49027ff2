"""The database: its tables, connections and SQL functions."""
