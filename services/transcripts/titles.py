"""The titles of conversations: those that logs state, and else the first line that a person wrote.

The functions take a connection and run inside the caller's transaction.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import apsw

from services.transcripts.messages import Title, TitleKind
from services.transcripts.operations.conversations import Block

INSTRUCTIONS = (
    "# AGENTS.md instructions",
    "Caveat: The messages below",
    "This is the Gemini CLI. We are setting up",
    "This session is being continued from a previous conversation",
)
"""How texts begin that an agent sends in the user's name."""

TABLES = """
-- Titles that logs state, by their kind: see messages.TitleKind.
CREATE TABLE title(
    conversation_id INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    text TEXT NOT NULL,
    PRIMARY KEY(conversation_id, kind)
) WITHOUT ROWID;
-- Titles that name a record of another file, or of a later part.
CREATE TABLE awaited(record BLOB PRIMARY KEY, kind INTEGER NOT NULL, text TEXT NOT NULL) WITHOUT ROWID;
CREATE TRIGGER title_begins AFTER INSERT ON title BEGIN
    DELETE FROM talk WHERE conversation_id=NEW.conversation_id;
END;
CREATE TRIGGER title_changes AFTER UPDATE ON title BEGIN
    DELETE FROM talk WHERE conversation_id=NEW.conversation_id;
END;
CREATE TRIGGER title_ends AFTER DELETE ON title BEGIN
    DELETE FROM talk WHERE conversation_id=OLD.conversation_id;
END;
CREATE TRIGGER title_is_lost AFTER DELETE ON conversation BEGIN
    DELETE FROM title WHERE conversation_id=OLD.conversation_id;
END;
CREATE TRIGGER title_is_empty AFTER UPDATE OF gone ON node WHEN NEW.gone BEGIN
    DELETE FROM title WHERE conversation_id IN (SELECT conversation_id FROM member WHERE node_id=NEW.node_id)
    AND NOT EXISTS(
        SELECT 1 FROM member JOIN node USING(node_id) WHERE member.conversation_id=title.conversation_id AND NOT gone
    );
END;
"""

MAX_TITLE_CHARS = 500

_FIRST_HOLDER = "SELECT conversation_id FROM member WHERE node_id=? ORDER BY number LIMIT 1"
_WRAPPER = re.compile(r"<([a-z][\w-]*)>\s*")


def first_line(blocks: Sequence[Block], strip: Callable[[str], str]) -> str:
    """Return the first line that a person wrote in a turn; empty if an agent wrote all of it."""
    for block in blocks:
        line = _unwrapped(strip(block.text).strip()).partition("\n")[0].strip()
        if line and not line.startswith(INSTRUCTIONS):
            return line
    return ""


def _unwrapped(text: str) -> str:
    """Return `text` without tags that an agent put around it, such as `<task>`."""
    while (opening := _WRAPPER.match(text)) is not None:
        inner, closing = text[opening.end() :], f"</{opening[1]}>"
        is_whole = inner.endswith(closing) and inner.count(closing) == 1
        # The text may be cut.
        is_cut = "\n" in opening[0] and closing not in inner
        inner = inner.removesuffix(closing).strip()
        if not inner or not (is_whole or is_cut):
            break
        text = inner
    return text


def store(db: apsw.Connection, id_: int, titles: Sequence[Title]) -> None:
    """Store titles of a conversation; each replaces the one of its kind."""
    for title in titles:
        if text := " ".join(title.text.split()):
            db.execute(
                "INSERT INTO title(conversation_id, kind, text) VALUES(?, ?, ?) ON CONFLICT DO UPDATE"
                " SET text=excluded.text WHERE text<>excluded.text",
                (id_, title.kind, _unwrapped(text)[:MAX_TITLE_CHARS]),
            )
        else:
            db.execute("DELETE FROM title WHERE conversation_id=? AND kind=?", (id_, title.kind))


def keep(db: apsw.Connection, record: bytes, title: Title) -> None:
    """Keep a title for the conversation of a record that is not stored yet."""
    db.execute("INSERT OR REPLACE INTO awaited(record, kind, text) VALUES(?, ?, ?)", (record, title.kind, title.text))


def store_kept(db: apsw.Connection) -> None:
    """Store the kept titles of the records that are stored by now."""
    rows = list(db.execute("SELECT record, node_id, kind, text FROM awaited CROSS JOIN record ON record.key=record"))
    for record, node_id, kind, text in rows:
        if (found := db.execute(_FIRST_HOLDER, (node_id,)).get) is not None:
            store(db, found, [Title(kind=TitleKind(kind), text=text)])
            db.execute("DELETE FROM awaited WHERE record=?", (record,))


def of(db: apsw.Connection, id_: int) -> list[tuple[int, str]]:
    """Return kinds and texts of a conversation's titles, the one to show first."""
    rows = db.execute("SELECT kind, text FROM title WHERE conversation_id=? ORDER BY kind DESC", (id_,))
    return [(int(kind), str(text)) for kind, text in rows]


def of_first_turn(db: apsw.Connection, name: bytes, node_id: int) -> list[tuple[int, str]]:
    """Return the titles of a conversation if this is its first turn."""
    id_ = db.execute(
        "SELECT conversation_id FROM conversation WHERE name=?1 AND"
        " ?2=(SELECT node_id FROM member WHERE member.conversation_id=conversation.conversation_id"
        " ORDER BY node_id LIMIT 1)",
        (name, node_id),
    ).get
    return [] if id_ is None else of(db, int(id_))


def forget(db: apsw.Connection, node_ids: Sequence[int]) -> None:
    """Delete the generated titles of conversations, which may repeat their turns; call before those are deleted."""
    db.executemany(
        "DELETE FROM title WHERE conversation_id IN (SELECT conversation_id FROM member WHERE node_id=?) AND kind<?",
        ((node_id, TitleKind.NAME) for node_id in node_ids),
    )
