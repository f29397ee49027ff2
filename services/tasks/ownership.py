"""Attributes tasks and timers of version 2, which belonged to the names of tokens, to the tokens themselves.

The mandate of a call that is still to be made says whose it is. Nothing says that of a task that has ended, or of a
subject of an issuer: the results become invisible, and such timers are removed, because nobody could cancel them. The
copy of the database from before the migration still has them.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import apsw
import msgspec

from proto.grants import Grant, token_id
from services.tasks.owners import Owner, of_grant

_MAC_BYTES = hashlib.sha256().digest_size


class _Mandate(msgspec.Struct, array_like=True):
    """The first members of `kernel.router.mandates.Mandate`."""

    source: str
    who: str
    grant: Grant | None
    token: str


def attribute(db: apsw.Connection) -> None:
    """Give every task and timer of a token its owner; `owner` holds the token's name."""
    for table in ("task", "timer"):
        rows: list[Any] = db.execute(f"SELECT rowid, owner, mandate FROM {table} WHERE owner<>''").fetchall()
        for number, name, mandate in rows:
            owner = _owner(mandate)
            if owner is None and table == "timer":
                db.execute("DELETE FROM timer WHERE rowid=?", (number,))
                continue
            found = owner or Owner(f"former:{name}", name)
            values = (found.id, name, found.limits, number)
            db.execute(f"UPDATE {table} SET owner=?, name=?, limits=? WHERE rowid=?", values)


def _owner(mandate: str) -> Owner | None:
    try:
        found = msgspec.msgpack.decode(base64.b64decode(mandate, validate=True)[_MAC_BYTES:], type=_Mandate)
    except (ValueError, msgspec.MsgspecError):
        # The task has ended or follows a call in flight, which has ended too.
        return None
    if found.grant is None or not found.token:
        return None
    return of_grant(msgspec.structs.replace(found.grant, id=token_id(found.token)))
