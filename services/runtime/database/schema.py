"""What a database holds: its tables, how older ones become them, and whether they can be made again."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import apsw

from linckia.proto.errors import OperationError

Migration = str | Callable[[apsw.Connection], object]
"""SQL, or a function that works inside the transaction of the migration."""


class Kind(enum.Enum):
    """What is lost with a damaged file."""

    SOURCE = "source"
    """The only copy: a damaged file is kept and served as far as it can be read."""

    DERIVED = "derived"
    """Follows from other data: a damaged file is put aside, and an empty one begun for the service to refill."""


class UnknownVersion(OperationError):
    """The file was written by a newer version of the program, or by one too old to migrate."""


@dataclass(frozen=True)
class Schema:
    """The newest tables, and how to reach them.

    `migrations` maps a version to what brings it to the next one. A derived database without a migration is rebuilt.
    `begin` writes the first rows, in the transaction that makes the tables. `keeps`: a derived database that also holds
    what users made, so that one of an unknown version is not begun again.
    """

    version: int
    tables: str
    migrations: Mapping[int, Migration] = field(default_factory=dict)
    begin: Callable[[apsw.Connection], object] = lambda _: None
    keeps: bool = False

    def is_behind(self, connection: apsw.Connection) -> bool:
        """Whether the open file has to be migrated."""
        return 0 < int(connection.pragma("user_version")) < self.version

    def apply(self, connection: apsw.Connection) -> None:
        """Bring the open file to `version`, in one transaction.

        Raises:
            UnknownVersion: there is no way from its version to this one.
            apsw.Error: the file is damaged, or the disk cannot take it.
        """
        found = int(connection.pragma("user_version"))
        if found == self.version:
            # Reads the schema, and so finds one that is damaged.
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
