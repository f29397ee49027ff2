"""SQLite for services; see `database.Database`."""

from linckia.proto.durable import sync_folder
from linckia.services.runtime.database.database import Change, Database, Query
from linckia.services.runtime.database.schema import Kind, Schema

__all__ = ["Change", "Database", "Kind", "Query", "Schema", "sync_folder"]
