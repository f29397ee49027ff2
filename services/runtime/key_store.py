"""Serves calls with an idempotency key: finds earlier answers, joins attempts in flight, and stores answers.

A service that changes a database keeps its keys there, so that a key and its effect are one transaction
(`Environment.keeps_keys_in`). Any other service gets a database of its own for them, made by its first keyed call.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw
import trio

from proto.errors import Cancelled, Executed, LinckiaError, Timeout, Unavailable, from_failure
from services.runtime import keyed
from services.runtime.database import Database, Kind, Schema
from services.runtime.keyed import Answered, KeyedCall
from services.runtime.rewrite import TooLarge, read_whole
from services.runtime.roots import OutsideRoots, Roots

FILE = "keys.db"
"""Name of the database of keys of a service that has no other."""

_SCHEMA = Schema(1, "")

_log = logging.getLogger("linckia.service")


class _Storing:
    """A change that is being stored while the thread that wants it goes on."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.error: BaseException | None = None

    def wait(self) -> None:
        """Wait until the change is on disk; blocks. Raises its error."""
        self.ended.wait()
        if self.error is not None:
            raise self.error


@dataclass(eq=False, slots=True)
class _Attempt:
    """A call in flight; further calls with its key wait for its outcome."""

    call: KeyedCall
    done: trio.Event = field(default_factory=trio.Event)
    body: bytes | None = None
    error: LinckiaError | None = None


class KeyStore:
    """The keys of one service.

    Args:
        folder: the service's folder.
        background: runs tasks that outlive a call.
    """

    def __init__(self, folder: Path, roots: Roots, background: trio.Nursery) -> None:
        self._folder = folder
        self._roots = roots
        self._background = background
        self._database: Database | None = None
        self._own: Database | None = None
        self._attempts: dict[str, _Attempt] = {}
        self._replaced: dict[str, KeyedCall] = {}
        """Calls whose file has been replaced, and whose intention is still to be settled."""
        self._settling = False
        self._loop: trio.lowlevel.TrioToken | None = None
        self.recovered = trio.Event()
        """Set once `recover` is done; until then no call may change a file."""

    def keep_in(self, database: Database) -> None:
        """Keep the keys in this database, which must have been opened with `keeps_keys`."""
        self._database = database

    async def recover(self) -> None:
        """Find out whether files were replaced that calls of an earlier process were about to replace."""
        if self._database is not None or (self._folder / FILE).exists():
            await trio.to_thread.run_sync(self._recover)
        self.recovered.set()

    def close(self) -> None:
        """Close the service's own database of keys, if it was opened."""
        if self._own is not None:
            self._own.close()

    def database(self) -> Database:
        """Return the database in which the keys are; blocks if it has to be created."""
        if self._database is None:
            self._own = self._database = Database(
                self._folder / FILE, _SCHEMA, kind=Kind.SOURCE, readers=1, keeps_keys=True
            )
        return self._database

    def _transaction(self) -> AbstractContextManager[apsw.Connection]:
        return self.database().transaction()

    def _store(self, change: Callable[[apsw.Connection], None]) -> Callable[[], None]:
        """Begin to store a change, and return the function that waits for it; for worker threads."""
        storing = _Storing()
        assert self._loop is not None
        self._loop.run_sync_soon(self._background.start_soon, self._store_in_task, change, storing)
        return storing.wait

    async def _store_in_task(self, change: Callable[[apsw.Connection], None], storing: _Storing) -> None:
        storing.error = Unavailable("the service ends")
        try:
            await self.database().write(change)
            storing.error = None
        except LinckiaError as error:
            storing.error = error
        finally:
            storing.ended.set()

    async def begin(self) -> None:
        """Store that the call being served, if it has a key, may now have an effect that this service does not
        store."""
        if keyed.serving() is not None:
            await self.database().write(lambda db: None)

    async def serve(
        self, key: str, operation: str, identity: bytes, work: Callable[[], Awaitable[bytes]], *, resumes: bool
    ) -> bytes:
        """Return the answer to a call with this key: that of an earlier attempt, or else of `work`.

        Args:
            identity: its parameters, or as much of them as every attempt has.
            resumes: whether `work` may run again after an attempt that had an effect and was interrupted.

        Raises:
            InvalidParams: the key was used for another call.
            MaybeExecuted: an earlier attempt was interrupted in the middle.
            Whatever `work` raises; an attempt that fails leaves the key unused, unless it has had an effect.
        """
        call = KeyedCall(key, operation, keyed.digest_of(operation, identity), self._transaction, self._store)
        while (attempt := self._attempts.get(key)) is not None:
            call.check_same(attempt.call.operation, attempt.call.digest)
            await attempt.done.wait()
            if attempt.error is not None:
                raise from_failure(attempt.error.failure)
            if attempt.body is not None:
                return attempt.body
        attempt = self._attempts[key] = _Attempt(call)
        try:
            attempt.body = await self._served(call, work, resumes=resumes)
            return attempt.body
        except (Cancelled, Timeout):
            # Those who wait have time left, perhaps, and try themselves.
            raise
        except LinckiaError as error:
            attempt.error = error
            raise
        finally:
            call.ended = True
            del self._attempts[key]
            attempt.done.set()

    async def _served(self, call: KeyedCall, work: Callable[[], Awaitable[bytes]], *, resumes: bool) -> bytes:
        if self._database is None:
            await trio.to_thread.run_sync(self.database)
        if (known := self._known(call, resumes=resumes)) is not None:
            return known
        self._loop = trio.lowlevel.current_trio_token()
        token = keyed.current.set(call)
        try:
            body = await work()
        except Answered as answered:
            return answered.body
        except LinckiaError as error:
            if call.is_marked and not resumes and error.failure.executed is Executed.NO:
                call.ended = True
                await self.database().write(lambda db: keyed.forget(db, call))
            raise
        finally:
            keyed.current.reset(token)
            if call.file is not None:
                # Whatever else happens, the file is replaced.
                self._replaced[call.key] = call
        if body not in (call.answer, call.file):
            # The answer is on disk before anyone gets it.
            await self.database().write(lambda db: keyed.finish(db, call, body))
            self._replaced.pop(call.key, None)
        self._settle_soon()
        return body

    def _known(self, call: KeyedCall, *, resumes: bool) -> bytes | None:
        """Return the answer of an earlier attempt. This takes some microseconds, so it needs no thread."""
        if (replaced := self._replaced.get(call.key)) is not None:
            call.check_same(replaced.operation, replaced.digest)
            return replaced.file
        with self.database().reader() as db:
            if (found := keyed.find(db, call)) is None or found.answer is not None:
                return None if found is None else found.answer
            if not resumes:
                raise keyed.lost(call.operation)
            call.is_repeated = True
            call.steps = dict(db.execute("SELECT step, value FROM keyed_step WHERE key=?", (call.key,)))
        return None

    # Files

    def _settle_soon(self) -> None:
        if self._replaced and not self._settling:
            self._settling = True
            self._background.start_soon(self._settle)

    async def _settle(self) -> None:
        """Store that files were replaced. Until then, `_replaced` says so, and after a death the files themselves."""
        try:
            while replaced := dict(self._replaced):

                def change(db: apsw.Connection, replaced: dict[str, KeyedCall] = replaced) -> None:
                    for key, call in replaced.items():
                        keyed.settle(db, key, call.file)

                await self.database().write(change)
                for key in replaced:
                    self._replaced.pop(key, None)
        except LinckiaError as error:
            _log.warning("answers to calls with idempotency keys are stored later: %s", error)
        finally:
            self._settling = False

    def _recover(self) -> None:
        database = self.database()
        try:
            with database.transaction() as db:
                rows: list[Any] = db.execute(
                    "SELECT key, operation, path, before, after, f.answer FROM keyed_file f JOIN keyed_call USING(key)"
                ).fetchall()
                for key, operation, path, before, after, answer in rows:
                    found = self._digest(path)
                    if found == before:
                        keyed.settle(db, key, None)
                    elif found == after:
                        keyed.settle(db, key, answer)
                    else:
                        _log.warning("%s: cannot tell whether an interrupted %s changed it", path, operation)
                        db.execute("DELETE FROM keyed_file WHERE key=?", (key,))
        except LinckiaError as error:
            _log.warning("interrupted calls with idempotency keys cannot be examined yet: %s", error)

    def _digest(self, path: str) -> bytes | None:
        """Return the hash of a file's content; None if it does not exist or cannot be read."""
        try:
            return keyed.content_digest(read_whole(path, self._roots))
        except (OSError, OutsideRoots, TooLarge, LinckiaError):
            return None
