"""Who reads what: subscriptions, checked and stored."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import NamedTuple

import apsw

from proto.errors import InvalidParams, OperationError
from proto.ops.watch import WatchSubscribe
from services.watch.store import select
from services.watch.tracker import Tracker
from services.watch.trees import Rules, Spec, Tree, encode, outermost

Key = tuple[str, str]
"""Caller and name."""


class Subscription(NamedTuple):
    """A subscription as it is stored; up to `since` its reader has not read this tree."""

    tree: int
    since: int
    complete: bool


def specify(params: WatchSubscribe, roots: Sequence[str]) -> Spec:
    """The parameters, checked. Raises InvalidParams."""
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


def subscribe(tracker: Tracker, key: Key, spec: Spec, acknowledged: dict[Key, int]) -> tuple[Tree, bool]:
    """The subscription on disk; answers its tree and whether it was there before. For `Watcher.change`."""
    store = tracker.store
    with tracker.transaction() as db:
        before = find(db, key)
        text = encode(spec)
        known = select(db, "SELECT tree FROM tree WHERE spec=?", (text,))
        if not known:
            db.execute("INSERT INTO tree(spec) VALUES(?)", (text,))
        number = known[0][0] if known else db.last_insert_rowid()
        kept = before is not None and before.tree == number
        if not kept:
            store.sequence += 1
            db.execute("INSERT OR REPLACE INTO subscription VALUES(?, ?, ?, ?, 0)", (*key, number, store.sequence))
            acknowledged.pop(key, None)
            if before is not None:
                _drop_unread(tracker, db, before.tree)
    return tracker.trees.setdefault(number, Tree.of(number, spec, complete=False)), kept


def unsubscribe(tracker: Tracker, key: Key, acknowledged: dict[Key, int]) -> bool:
    """Answers whether it was there. For `Watcher.change`."""
    with tracker.transaction() as db:
        before = find(db, key)
        if before is None:
            return False
        db.execute("DELETE FROM subscription WHERE caller=? AND name=?", key)
        acknowledged.pop(key, None)
        _drop_unread(tracker, db, before.tree)
    return True


def _drop_unread(tracker: Tracker, db: apsw.Connection, tree: int) -> None:
    if not select(db, "SELECT 1 FROM subscription WHERE tree=? LIMIT 1", (tree,)):
        tracker.forget(tree)


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
