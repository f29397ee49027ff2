"""What `linckia export` and `import` ask for: turns as they are kept, with their hashes.

A turn whose hash is not that of its content is refused; one that was deleted is carried as its place alone.
"""

from __future__ import annotations

import hashlib
from typing import Any

import apsw
import msgspec

from proto.errors import InvalidParams
from proto.ops import transcripts_carry as ops
from services.runtime.database import Database
from services.runtime.handlers import Context, handles
from services.transcripts import forest
from services.transcripts.hashing import PROJECTION_BYTES, canonical, content_json, node_hash, projection
from services.transcripts.ingest import Ingest
from services.transcripts.messages import Message

PAGE_BYTES = 4 * 1024 * 1024
PAGE_TURNS = 2000

_TURNS = (
    "SELECT node.node_id, lower(hex(root.hash)), root.at, lower(hex(node.hash)), coalesce(lower(hex(parent.hash)), ''),"
    " node.role, node.at, node.content, node.model, node.provider, node.agent, node.project,"
    " coalesce(lower(hex(prompt.digest)), ''), node.reply, node.stop_reason, node.usage, node.thinking, node.gone,"
    " iif(node.gone, lower(hex(node.projection)), '')"
    " FROM node JOIN node root ON root.node_id = node.root LEFT JOIN node parent ON parent.node_id = node.parent"
    " LEFT JOIN prompt ON prompt.prompt_id = node.prompt_id WHERE node.node_id > ? ORDER BY node.node_id LIMIT ?"
)


class Carrying:
    """The handlers."""

    def __init__(self, database: Database, ingest: Ingest) -> None:
        self._database = database
        self._ingest = ingest

    @handles(ops.TranscriptExport)
    async def export(self, params: ops.TranscriptExport, ctx: Context) -> ops.ExportedTurns:
        def query(db: apsw.Connection) -> ops.ExportedTurns:
            turns: list[ops.ExportedTurn] = []
            next_, left = params.after, PAGE_BYTES
            for node_id, root, began, *row in db.execute(_TURNS, (params.after, PAGE_TURNS)):
                next_ = node_id
                turns.append(ops.ExportedTurn(root=root, began=began, turn=_turn(*row)))
                left -= len(row[4]) + len(row[13])
                if left < 0:
                    break
            return ops.ExportedTurns(turns=turns, next=next_)

        return await self._database.read(query)

    @handles(ops.TranscriptExportPrompts)
    async def export_prompts(self, params: ops.TranscriptExportPrompts, ctx: Context) -> ops.ExportedPrompts:
        def query(db: apsw.Connection) -> ops.ExportedPrompts:
            prompts: list[str] = []
            last, left = b"", PAGE_BYTES
            rows = db.execute("SELECT digest, text FROM prompt WHERE digest > ? ORDER BY digest", (after,))
            for digest, text in rows:
                last = digest
                prompts.append(text)
                left -= len(text)
                if left < 0:
                    break
            barred = [] if after else [one.hex() for (one,) in db.execute("SELECT projection FROM barred ORDER BY 1")]
            return ops.ExportedPrompts(prompts=prompts, next=last.hex(), barred=barred)

        after = bytes.fromhex(params.after)
        return await self._database.read(query)

    @handles(ops.TranscriptRestore)
    async def restore(self, params: ops.TranscriptRestore, ctx: Context) -> ops.RestoredTurns:
        def change(db: apsw.Connection) -> int:
            before = db.total_changes()
            for text in params.prompts:
                digest = hashlib.sha256(text.encode()).digest()[:16]
                db.execute("INSERT OR IGNORE INTO prompt(digest, text) VALUES(?, ?)", (digest, text))
            db.executemany("INSERT OR IGNORE INTO barred VALUES(?)", ((bytes.fromhex(one),) for one in params.barred))
            for turn in params.turns:
                self._put(db, turn)
            return db.total_changes() - before

        changed = await self._database.write(change)
        if changed:
            self._ingest.hurry()
        return ops.RestoredTurns(changed=changed)

    def _put(self, db: apsw.Connection, turn: ops.CarriedTurn) -> None:
        hash_ = bytes.fromhex(turn.hash)
        if db.execute("SELECT 1 FROM node WHERE hash=?", (hash_,)).get is not None:
            return
        above = None
        if turn.parent_hash:
            row = db.execute(
                "SELECT node_id, root, depth, projection FROM node WHERE hash=?", (bytes.fromhex(turn.parent_hash),)
            ).fetchone()
            if row is None:
                raise InvalidParams(f"turn {turn.hash} follows {turn.parent_hash}, which is not there", field="turns")
            above = row
        parent, root, depth, before = above or (None, None, 0, b"")
        content = content_json(turn.content)
        told = bytes.fromhex(turn.projection)
        if not turn.gone:
            named = {"role": turn.role, "model": turn.model, "provider": turn.provider, "agent": turn.agent_name}
            if node_hash(canonical(content, parent=turn.parent_hash, **named)) != hash_:
                raise InvalidParams(f"turn {turn.hash} is not what its hash says", field="turns")
            told = projection(before, turn.role, turn.content, self._ingest.strip)
        elif len(told) != PROJECTION_BYTES:
            raise InvalidParams(f"turn {turn.hash} is gone and has no projection", field="turns")
        is_barred = db.execute("SELECT 1 FROM barred WHERE projection=?", (told,)).get is not None
        gone = turn.gone or is_barred
        searched = not gone and self._ingest.is_found(Message(role=turn.role, content=turn.content))
        prompt = db.execute("SELECT prompt_id FROM prompt WHERE digest=?", (bytes.fromhex(turn.prompt),)).get
        db.execute(
            "INSERT INTO node(hash, parent, root, depth, projection, reply, gone, found, role, content, model,"
            " provider, agent, project, at, stop_reason, usage, thinking, prompt_id)"
            " VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (hash_, parent, root, depth + 1, told, turn.reply, gone, searched, turn.role, b"[]" if gone else content,
             turn.model, turn.provider, turn.agent_name, turn.project, turn.at, "" if gone else turn.stop_reason,
             "" if gone else _json(turn.usage), "" if gone else _json(turn.thinking), None if gone else prompt),
        )  # fmt: skip
        node_id = db.last_insert_rowid()
        db.execute("UPDATE node SET root=?1 WHERE node_id=?1 AND root IS NULL", (node_id,))
        if searched:
            db.execute("INSERT INTO outbox(node_id, hash) VALUES(?, ?)", (node_id, hash_))


def _turn(hash_: str, parent: str, role: str, at: float, content: bytes, model: str, provider: str, agent: str,
          project: str, prompt: str, reply: int, stop_reason: str, usage: str, thinking: str, gone: int,
          told: str) -> ops.CarriedTurn:  # fmt: skip
    return ops.CarriedTurn(
        hash=hash_, parent_hash=parent, role=role, at=at, content=forest.read_blocks(content), model=model,
        provider=provider, agent_name=agent, project=project, prompt=prompt, reply=bool(reply),
        stop_reason=stop_reason, usage=msgspec.json.decode(usage) if usage else None,
        thinking=msgspec.json.decode(thinking) if thinking else [], gone=bool(gone), projection=told,
    )  # fmt: skip


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode() if value else ""
