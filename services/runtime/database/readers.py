"""A pool of connections that read, for worker threads."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import apsw


class Readers:
    """As many connections as are used at the same time, each by one thread.

    They are opened when they are needed, so a start does not wait for them, and kept for the next reader.
    """

    def __init__(self, opened: Callable[[], apsw.Connection]) -> None:
        self._opened = opened
        self._idle: list[apsw.Connection] = []
        """The last was used last."""
        self._lock = threading.Lock()
        self._closed = False

    @contextlib.contextmanager
    def one(self) -> Iterator[apsw.Connection]:
        """A connection for as long as the block lasts. Raises what opening one does."""
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        connection = connection or self._opened()
        try:
            yield connection
        finally:
            with self._lock:
                closed = self._closed
                if not closed:
                    self._idle.append(connection)
            if closed:
                connection.close()

    def give_back(self) -> None:
        """Close the idle connections but one, and release the pages which that one has cached."""
        with self._lock:
            rest, kept = self._idle[:-1], self._idle[-1:]
            self._idle = []
        try:
            for connection in rest:
                connection.close()
            for connection in kept:
                connection.execute("PRAGMA shrink_memory").fetchall()
        finally:
            with self._lock:
                self._idle += kept

    def close(self) -> None:
        """Close the idle connections now, and those in use once they are returned."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
