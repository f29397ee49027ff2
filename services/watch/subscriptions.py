"""Who reads what: subscriptions, the changes after a number, and the whole state page by page.

A reader is told to take the state anew where the log does not reach back to its number, where it has just subscribed,
and where its paths or rules are others than before.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import apsw

from proto.errors import InvalidParams, OperationError
from proto.ops.watch import WatchSubscribe
from services.watch.snapshot import FOLDER, Snapshot, join
from services.watch.store import Row, select
from services.watch.trees import Rules, Spec, Tree, encode, outermost
from services.watch.watcher import Watcher

SNAPSHOT_IDLE_S: Final = 60.0
MAX_SNAPSHOTS: Final = 16

Key = tuple[str, str]
"""Caller and name."""


class Subscription(NamedTuple):
    """A subscription as it is stored; up to `since` its reader has not read this tree."""

    tree: int
    since: int
    complete: bool


def specify(params: WatchSubscribe, roots: Sequence[str]) -> Spec:
    """What is asked for, checked. Raises InvalidParams."""
    paths = []
    for index, path in enumerate(params.paths):
        field = f"paths[{index}]"
        real = os.path.realpath(path)
        if not any(real == root or real.startswith(root.rstrip(os.sep) + os.sep) for root in roots):
            raise InvalidParams(
                f"parameter `{field}`: {path[:200]} is not below a root ({', '.join(roots) or 'there is none'})",
                field=field,
            )
        if not os.path.isdir(real):
            reason = "is not a directory" if os.path.lexists(real) else os.strerror(errno.ENOENT).lower()
            raise InvalidParams(f"parameter `{field}`: {path[:200]}: {reason}", field=field)
        paths.append(real)
    try:
        Rules(params.ignore, params.include)
    except ValueError as error:
        raise InvalidParams(f"parameter `ignore`: {error}", field="ignore") from None
    kept = outermost(paths) if params.recursive else tuple(sorted(set(paths)))
    return Spec(
        paths=kept, recursive=params.recursive, ignore=tuple(params.ignore), include=tuple(sorted(set(params.include)))
    )


def subscribe(watcher: Watcher, key: Key, spec: Spec) -> tuple[Tree, bool]:
    """The subscription on disk; answers its tree and whether it was there before. Blocks; with the turn in hand."""
    trees = watcher.tracker.trees
    with watcher.store.transaction() as db:
        before = find(db, key)
        text = encode(spec)
        known = select(db, "SELECT tree FROM tree WHERE spec=?", (text,))
        if not known:
            db.execute("INSERT INTO tree(spec) VALUES(?)", (text,))
        number = known[0][0] if known else db.last_insert_rowid()
        kept = before is not None and before.tree == number
        if not kept:
            watcher.store.sequence += 1
            db.execute(
                "INSERT OR REPLACE INTO subscription VALUES(?, ?, ?, ?, 0)", (*key, number, watcher.store.sequence)
            )
            watcher.acknowledged.pop(key, None)
            if before is not None:
                _drop_unread(watcher, db, before.tree)
    return trees.setdefault(number, Tree.of(number, spec, complete=False)), kept


def unsubscribe(watcher: Watcher, key: Key) -> bool:
    """Blocks; with the turn in hand."""
    with watcher.store.transaction() as db:
        before = find(db, key)
        if before is None:
            return False
        db.execute("DELETE FROM subscription WHERE caller=? AND name=?", key)
        watcher.acknowledged.pop(key, None)
        _drop_unread(watcher, db, before.tree)
    return True


def _drop_unread(watcher: Watcher, db: apsw.Connection, tree: int) -> None:
    if not select(db, "SELECT 1 FROM subscription WHERE tree=? LIMIT 1", (tree,)):
        watcher.tracker.forget(tree)


def find(db: apsw.Connection, key: Key) -> Subscription | None:
    """A subscription, if it is there."""
    rows = select(
        db,
        "SELECT tree, max(floor, since), complete FROM subscription JOIN tree USING(tree) WHERE caller=? AND name=?",
        key,
    )
    return Subscription(rows[0][0], rows[0][1], bool(rows[0][2])) if rows else None


def required(db: apsw.Connection, key: Key) -> Subscription:
    """A subscription. Raises OperationError where it is not there."""
    found = find(db, key)
    if found is None:
        raise OperationError(f"there is no subscription {key[1]!r} of {key[0]}; subscribe with watch_subscribe")
    return found


@dataclass(slots=True)
class OpenSnapshot:
    """A state that is being read: a connection within a transaction."""

    key: Key
    tree: int
    db: apsw.Connection
    snapshot: Snapshot
    sequence: int
    used_at: float


class Snapshots:
    """The states that are being read. Blocks."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._open: dict[str, OpenSnapshot] = {}

    def begin(self, key: Key) -> str:
        """A new one; answers its cursor. Raises OperationError where the first scan is not through."""
        self.expire()
        while len(self._open) >= MAX_SNAPSHOTS:
            self._close(min(self._open, key=lambda token: self._open[token].used_at))
        db = self._watcher.store.reader()
        try:
            db.execute("BEGIN")
            found = required(db, key)
            if not found.complete:
                raise OperationError("the first scan is under way; watch_changes tells when it is through")
            ((sequence,),) = select(db, "SELECT value FROM meta WHERE key='sequence'")
        except BaseException:
            db.close()
            raise
        token = os.urandom(8).hex()
        self._open[token] = OpenSnapshot(key, found.tree, db, Snapshot(db), sequence, time.monotonic())
        return f"{token}.0."

    def page(self, key: Key, cursor: str, limit: int) -> tuple[list[tuple[bytes, Row]], str, int]:
        """Entries with their paths, the next cursor (empty at the end), and the state's number.

        Raises:
            OperationError: the snapshot is gone.
            InvalidParams: that is no cursor.
        """
        try:
            token, folder_text, name_text = cursor.split(".")
            folder, name = int(folder_text), bytes.fromhex(name_text)
        except ValueError:
            raise InvalidParams("parameter `cursor`: it is not one that a page named", field="cursor") from None
        state = self._open.get(token)
        if state is None or state.key != key:
            raise OperationError("the snapshot is gone; begin again without a cursor")
        state.used_at = time.monotonic()
        found: list[tuple[bytes, Row]] = []
        if not folder:
            for (number,) in select(
                state.db, "SELECT folder FROM folder WHERE tree=? AND parent=0 ORDER BY folder", (state.tree,)
            ):
                root = state.snapshot.folder(number)
                assert root is not None
                found.append((root.name, Row(FOLDER, 0, 0, 0, root.identity.inode, number)))
        last = (folder, name)
        count = 0
        for number, each, row in state.snapshot.entries(state.tree, folder, name, limit):
            found.append((join(state.snapshot.path(number), each), row))
            last = (number, each)
            count += 1
        if count < limit:
            self._close(token)
            return found, "", state.sequence
        return found, f"{token}.{last[0]}.{last[1].hex()}", state.sequence

    def expire(self) -> None:
        """Close those that nobody reads on."""
        now = time.monotonic()
        for token, state in list(self._open.items()):
            if now - state.used_at > SNAPSHOT_IDLE_S:
                self._close(token)

    def close(self) -> None:
        for token in list(self._open):
            self._close(token)

    def _close(self, token: str) -> None:
        self._open.pop(token).db.close()
