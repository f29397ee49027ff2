"""The schema of a database: its tables, its migrations, and whether its data can be derived again."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import apsw

from proto.errors import OperationError

Migration = str | Callable[[apsw.Connection], object]
"""SQL, or a function that runs inside the migration's transaction."""


class Kind(enum.Enum):
    """How much is lost if the file is damaged."""

    SOURCE = "source"
    """The only copy of its data: a damaged file stays in place and is served as far as it can be read."""

    DERIVED = "derived"
    """Derived from other data: a damaged file is set aside, and the service refills an empty one."""


class UnknownVersion(OperationError):
    """The file was written by a newer version of the program, or by one too old to migrate."""


@dataclass(frozen=True)
class Schema:
    """The current tables and the migrations that lead to them.

    `migrations` maps each version to the step that leads to the next one. A derived database without a migration is
    rebuilt. `begin` inserts the first rows, in the transaction that creates the tables. `keeps` marks a derived
    database that also holds users' data, so that an unknown version is not replaced by an empty file.
    """

    version: int
    tables: str
    migrations: Mapping[int, Migration] = field(default_factory=dict)
    begin: Callable[[apsw.Connection], object] = lambda _: None
    keeps: bool = False

    def is_behind(self, connection: apsw.Connection) -> bool:
        """Return True if the open file has to be migrated."""
        return 0 < int(connection.pragma("user_version")) < self.version

    def apply(self, connection: apsw.Connection) -> None:
        """Migrate the open file to `version` in one transaction.

        Raises:
            UnknownVersion: no migration leads from the file's version to this one.
            apsw.Error: the file is damaged, or the disk cannot take the change.
        """
        found = int(connection.pragma("user_version"))
        if found == self.version:
            # This reads the schema, and so detects a damaged one.
            connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
            return
        connection.execute("BEGIN IMMEDIATE")
        try:
            for step in (self.tables, self.begin) if found == 0 else self._steps(connection, found):
                if isinstance(step, str):
                    connection.execute(step).fetchall()
                else:
                    step(connection)
            connection.pragma("user_version", self.version)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def _steps(self, connection: apsw.Connection, found: int) -> list[Migration]:
        between = range(found, self.version)
        if not between or not self.migrations.keys() >= set(between):
            raise UnknownVersion(
                f"{connection.filename} has schema version {found}; this version of Linckia reads {self.version}. "
                "Start the version that wrote it, or move the file away"
            )
        return [self.migrations[version] for version in between]
