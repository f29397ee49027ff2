"""New vectors that are outside the index until they are moved into it, as to add one to a large index takes 5 ms.

They are rows of the same table, marked as staged, which the index leaves out. A search compares its query with each of
them, in the statement that searches the index. To move a vector is to unmark its row: every snapshot has one version of
a row, so a vector is found once at any time. How many are staged is bounded; beyond, writes go into the index.
"""

from __future__ import annotations

import threading

from psycopg import sql

from services.retrieve.postgres.server import Connection, parts
from services.retrieve.vector_store import Model

MOST = 20_000
"""So many vectors are staged at most, about: a kernel counts every few seconds, and adds its own writes in between."""

BATCH = 50
"""Vectors that are moved in one transaction, for whose rows a write waits that replaces one of them."""


class Staging:
    """How many vectors are staged, as far as this kernel knows.  Any thread may use it.

    Args:
        most: how many may be.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.staged = 0
        self._is_full = False
        """Whether vectors had to go into the index, and not half of those that are staged were moved since."""
        self.model_id: int | None = None
        """The model whose vectors are staged; None if none are."""
        self._guard = threading.Lock()

    def count(self, connection: Connection, schema: str, number: int, model: Model | None) -> None:
        """Count again.

        Args:
            model: whose vectors are staged from now on; None if there is no index that leaves them out.
        """
        staged = 0
        if model is not None:
            query = sql.SQL("SELECT count(*) FROM {vectors} WHERE model_id = %s AND staged")
            row = connection.execute(query.format(**parts(schema, number)), (model.model_id,)).fetchone()
            staged = int(row[0]) if row is not None else 0
        with self._guard:
            self.model_id = None if model is None else model.model_id
            self.staged = staged
            self._is_full = self._is_full and staged > self.most // 2

    def take(self, model_id: int, count: int) -> bool:
        """Return whether `count` more vectors of this model are to be staged."""
        with self._guard:
            if model_id != self.model_id:
                return False
            if self.staged + count > self.most:
                self._is_full = True
                return False
            self.staged += count
            return True

    def give_back(self, count: int) -> None:
        """Take note that so many fewer are staged."""
        with self._guard:
            self.staged = max(0, self.staged - count)
            self._is_full = self._is_full and self.staged > self.most // 2

    @property
    def trouble(self) -> str:
        """What to show in the service's status; empty if nothing is wrong."""
        if not self._is_full:
            return ""
        return f"{self.staged:,} new vectors wait for the index; until half of them are in it, writes are slower"


def move(connection: Connection, schema: str, number: int, model_id: int) -> int:
    """Move some vectors into the index, inside the caller's transaction.  Returns how many."""
    tables = parts(schema, number)
    # Those that a write is about to replace are left out: nobody waits here while others wait for its rows.
    rows = connection.execute(
        sql.SQL(
            "SELECT item_id FROM {vectors} WHERE model_id = %s AND staged ORDER BY item_id LIMIT %s "
            "FOR UPDATE SKIP LOCKED"
        ).format(**tables),
        (model_id, BATCH),
    ).fetchall()
    if not rows:
        return 0
    return connection.execute(
        sql.SQL("UPDATE {vectors} SET staged = false WHERE model_id = %s AND item_id = ANY(%s) AND staged").format(
            **tables
        ),
        (model_id, [item_id for (item_id,) in rows]),
    ).rowcount
