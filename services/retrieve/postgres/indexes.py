"""The indexes of a collection's vectors on the server."""

from __future__ import annotations

from psycopg import sql

from services.retrieve.postgres.rows import Indexing, indexed
from services.retrieve.postgres.server import Connection, Lease, Server, parts
from services.retrieve.vector_store import Model

MAX_DIMENSIONS = 4000
"""What pgvector's index of 16-bit numbers can hold."""


class VectorIndexes:
    """The indexes of one collection.  Every method blocks.

    Args:
        number: of the collection.
        kind: of the graphs, `hnsw` or `binary`.
        search: see `Indexing`.
        build_memory: `maintenance_work_mem` while one is built.
    """

    def __init__(self, server: Server, number: int, kind: str, search: int, build_memory: str) -> None:
        self._server = server
        self._number = number
        self._kind, self._search, self._build_memory = kind, search, build_memory
        self._of_staged = f"vectors_{number}_staged"

    def _kind_of(self, model: Model) -> str:
        return self._kind if model.dimensions <= MAX_DIMENSIONS else "binary"

    def _graph(self, model: Model) -> str:
        """Return the name of the graph of the vectors that are not staged."""
        return f"{self._whole(model)}_settled"

    def _whole(self, model: Model) -> str:
        """Return the name of the graph of all vectors, as version 1 of the tables had it."""
        return f"vectors_{self._number}_{model.model_id}_{self._kind_of(model)}"

    def current(self, connection: Connection, model: Model | None) -> Indexing:
        """Return how the vectors of this model are to be searched."""
        if model is not None:
            if self.is_built(connection, model):
                return Indexing(self._kind_of(model), self._search, stages=True)
            if self._is_valid(connection, self._whole(model)):
                return Indexing(self._kind_of(model), self._search)
        return Indexing("flat", self._search)

    def is_built(self, connection: Connection, model: Model) -> bool:
        """Return whether both indexes are there that `build` makes."""
        return all(self._is_valid(connection, name) for name in (self._of_staged, self._graph(model)))

    def is_left(self, connection: Connection, model: Model) -> bool:
        """Return whether an index of version 1 of the tables is still there."""
        return self._is_valid(connection, self._whole(model))

    def _is_valid(self, connection: Connection, name: str) -> bool:
        row = connection.execute(
            "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)", (f"{self._server.schema}.{name}",)
        ).fetchone()
        return row is not None and bool(row[0])

    def build(self, model: Model, lease: Lease) -> None:
        """Build those that are not there, then drop the one that they replace."""
        binary = self._kind_of(model) == "binary"
        graph = sql.SQL("USING hnsw ({of} {ops}) WHERE model_id = {model} AND NOT staged").format(
            of=indexed(model.dimensions, binary=binary),
            ops=sql.SQL("bit_hamming_ops" if binary else "halfvec_ip_ops"),
            model=sql.Literal(model.model_id),
        )
        tables = parts(self._server.schema, self._number)
        with self._server.unbounded(lease) as connection:
            connection.execute("SELECT set_config('maintenance_work_mem', %s, false)", (self._build_memory,))
            for name, what in (
                (self._of_staged, sql.SQL("(model_id, item_id) WHERE staged")),
                (self._graph(model), graph),
            ):
                if not self._is_valid(connection, name):
                    # Left by a kernel that was killed while it built.
                    self._drop(connection, name)
                    connection.execute(
                        sql.SQL("CREATE INDEX CONCURRENTLY {} ON {} {}").format(
                            sql.Identifier(name), tables["vectors"], what
                        )
                    )
            self._drop(connection, self._whole(model))
            connection.execute(sql.SQL("ANALYZE {vectors}").format(**tables))
            connection.execute(sql.SQL("ANALYZE {items}").format(**tables))

    def _drop(self, connection: Connection, name: str) -> None:
        index = sql.Identifier(self._server.schema, name)
        connection.execute(sql.SQL("DROP INDEX CONCURRENTLY IF EXISTS {}").format(index))

    def forget(self, model: Model) -> None:
        """Remove the graphs and the vectors of a model that is not searched any more."""
        with self._server.unbounded() as connection:
            for name in (self._whole(model), self._graph(model)):
                self._drop(connection, name)
            connection.execute(
                sql.SQL("DELETE FROM {vectors} WHERE model_id = %s").format(**parts(self._server.schema, self._number)),
                (model.model_id,),
            )
