"""SQLite as every service uses it: see `database.Database`."""

from services.runtime.database.database import Change, Database, Query
from services.runtime.database.schema import Kind, Schema
from services.runtime.storage import sync_folder

__all__ = ["Change", "Database", "Kind", "Query", "Schema", "sync_folder"]
