"""The database: its tables, its connections and the functions that SQL calls."""
