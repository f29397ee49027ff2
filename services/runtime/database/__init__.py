"""SQLite for services; see `database.Database`."""

from proto.host.durable import sync_folder
from services.runtime.database.database import Change, Database, Query
from services.runtime.database.schema import Kind, Schema

__all__ = ["Change", "Database", "Kind", "Query", "Schema", "sync_folder"]
