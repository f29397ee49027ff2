"""Connections to a database for those who read, whichever library opens them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from services.runtime import sqlite_files


class Connection(sqlite_files.Connection, Protocol):
    """Of either library."""

    def close(self) -> None: ...


C = TypeVar("C", bound=Connection)


class Readers(Generic[C]):
    """As many as are used at the same time, each by one thread; for worker threads, any of them.

    They are opened as they are wanted, for a start need not wait for them, and kept for whoever reads next.
    """

    def __init__(self, opened: Callable[[], C]) -> None:
        self._opened = opened
        self._idle: list[C] = []
        """That nobody uses; the last was used last."""
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def one(self) -> Iterator[C]:
        """A connection for as long as the block lasts.  Raises what opening one does."""
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        connection = connection or self._opened()
        try:
            yield connection
        finally:
            with self._lock:
                self._idle.append(connection)

    def give_back(self) -> None:
        """Close those that nobody uses but one, and let the pages go that this one keeps."""
        with self._lock:
            rest, kept = self._idle[:-1], self._idle[-1:]
            self._idle = []
        try:
            for connection in rest:
                connection.close()
            for connection in kept:
                sqlite_files.let_pages_go(connection)
        finally:
            with self._lock:
                self._idle += kept

    def close(self) -> None:
        """Close those that nobody uses: once there is nobody, all."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
