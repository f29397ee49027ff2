"""Taking messages out of the forest: what others follow keeps its place, without its content.

Functions on one connection, inside the caller's transaction.
"""

from __future__ import annotations

import apsw


def delete(db: apsw.Connection, node_id: int, *, descendants: bool, bar: bool) -> tuple[list[bytes], int]:
    """Take out a node's content, or it and all that follow it.

    Returns:
        The hashes of those whose content went, and how many of them keep their place.
    """
    if descendants:
        doomed = list(
            db.execute(
                "WITH RECURSIVE down(node_id) AS (VALUES(?) UNION ALL"
                " SELECT node.node_id FROM down JOIN node ON node.parent=down.node_id)"
                " SELECT node.node_id, hash, projection FROM down JOIN node ON node.node_id=down.node_id"
                " ORDER BY depth DESC",
                (node_id,),
            )
        )
    else:
        doomed = list(db.execute("SELECT node_id, hash, projection FROM node WHERE node_id=?", (node_id,)))
    kept = 0
    above: int | None = None
    prompts: set[int] = set()
    for found, hash_, projection_ in doomed:
        prompts.update(id_ for (id_,) in db.execute("SELECT prompt_id FROM node WHERE node_id=?", (found,)) if id_)
        if bar:
            db.execute("INSERT OR IGNORE INTO barred VALUES(?)", (projection_,))
        db.execute("DELETE FROM outbox WHERE node_id=?", (found,))
        db.execute("INSERT INTO outbox(node_id, hash) VALUES(NULL, ?)", (hash_,))
        if db.execute("SELECT 1 FROM node WHERE parent=? LIMIT 1", (found,)).fetchone() is not None:
            db.execute(
                "UPDATE node SET gone=1, found=0, content=?, thinking='', stop_reason='', usage='', prompt_id=NULL"
                " WHERE node_id=?",
                (b"[]", found),
            )
            kept += 1
        else:
            above = _remove(db, found)
    while above is not None:
        # A place is kept for those that follow it only.
        row = db.execute(
            "SELECT parent FROM node WHERE node_id=?1 AND gone"
            " AND NOT EXISTS(SELECT 1 FROM node child WHERE child.parent=?1)",
            (above,),
        ).fetchone()
        above = None if row is None else _remove(db, above)
    db.executemany(
        "DELETE FROM prompt WHERE prompt_id=?1 AND NOT EXISTS(SELECT 1 FROM node WHERE prompt_id=?1)",
        ((id_,) for id_ in prompts),
    )
    return [hash_ for _, hash_, _ in doomed], kept


def take_back(db: apsw.Connection, node_id: int) -> None:
    """Take out a message that turned out to be unfinished; nothing happens where others follow it."""
    if db.execute("SELECT 1 FROM node WHERE node_id=?1 AND NOT EXISTS(SELECT 1 FROM node WHERE parent=?1)", (node_id,)
                  ).fetchone() is not None:  # fmt: skip
        delete(db, node_id, descendants=False, bar=False)


def _remove(db: apsw.Connection, node_id: int) -> int | None:
    """Answers the node's parent."""
    row = db.execute("SELECT parent FROM node WHERE node_id=?", (node_id,)).fetchone()
    db.execute("DELETE FROM record WHERE node_id=?", (node_id,))
    db.execute("DELETE FROM node WHERE node_id=?", (node_id,))
    return None if row is None or row[0] is None else int(row[0])
