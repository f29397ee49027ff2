"""The operations behind `linckia export` and `import`: stored turns with their hashes.

A turn whose hash does not match its content is refused. A deleted turn is exported without content, as a place holder.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apsw
import msgspec

from proto.errors import InvalidParams
from services.runtime.database import Database
from services.runtime.handlers import Context, handles
from services.transcripts import conversations, forest, titles
from services.transcripts.ingest import Ingest
from services.transcripts.messages import (
    PROJECTION_BYTES,
    Message,
    Title,
    TitleKind,
    Turn,
    canonical,
    content_json,
    node_hash,
    projection,
)
from services.transcripts.operations import carry as ops

PAGE_BYTES = 4 * 1024 * 1024
PAGE_TURNS = 2000

_FIELDS = [name for name in ops.CarriedTurn.__struct_fields__ if name != "conversations"]
_TURNS = (
    # For each turn, the fields of `CarriedTurn` in order.
    "SELECT node.node_id, lower(hex(root.hash)), root.at, lower(hex(node.hash)), coalesce(lower(hex(parent.hash)), ''),"
    " node.role, node.at, node.content, node.model, node.provider, node.agent, node.project,"
    " coalesce(lower(hex(prompt.digest)), ''), node.reply, node.stop_reason, node.usage, node.thinking, node.gone,"
    " iif(node.gone, lower(hex(node.projection)), '')"
    " FROM node JOIN node root ON root.node_id = node.root LEFT JOIN node parent ON parent.node_id = node.parent"
    " LEFT JOIN prompt ON prompt.prompt_id = node.prompt_id WHERE node.node_id > ? ORDER BY node.node_id LIMIT ?"
)


class Transfer:
    """The handlers of export and import."""

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
                turn = _turn(row, list(_holders(db, node_id)))
                turns.append(ops.ExportedTurn(root=root, began=began, turn=turn))
                left -= len(row[4]) + len(row[13])
                if left < 0:
                    break
            return ops.ExportedTurns(turns=turns, next=next_)

        return await self._database.read(query)

    @handles(ops.TranscriptExportPrompts)
    async def export_prompts(self, params: ops.TranscriptExportPrompts, ctx: Context) -> ops.ExportedPrompts:
        def query(db: apsw.Connection) -> ops.ExportedPrompts:
            prompts: list[str] = []
            next_, left = "", PAGE_BYTES
            after = bytes.fromhex(params.after)
            rows = db.execute("SELECT lower(hex(digest)), text FROM prompt WHERE digest > ? ORDER BY digest", (after,))
            for digest, text in rows:
                next_ = digest
                prompts.append(text)
                left -= len(text)
                if left < 0:
                    break
            barred = [] if after else [one.hex() for (one,) in db.execute("SELECT projection FROM barred ORDER BY 1")]
            return ops.ExportedPrompts(prompts=prompts, next=next_, barred=barred)

        return await self._database.read(query)

    @handles(ops.TranscriptRestore)
    async def restore(self, params: ops.TranscriptRestore, ctx: Context) -> ops.RestoredTurns:
        def change(db: apsw.Connection) -> int:
            before = db.total_changes()
            for text in params.prompts:
                forest.keep_prompt(db, text)
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
        place = forest.node_ref(db, hash_)
        is_new = place is None
        if place is None:
            place = self._insert(db, turn, hash_)
        for holder in turn.conversations:
            _hold(db, place.node_id, holder)
        if is_new and not turn.conversations:
            # Exported by an earlier version.
            self._claim(db, turn, place)

    def _claim(self, db: apsw.Connection, turn: ops.CarriedTurn, place: forest.NodeRef) -> None:
        message = Message(
            role=turn.role, content=turn.content, model=turn.model, reply=turn.reply, usage=turn.usage, at=turn.at
        )
        whole = Turn(provider=turn.provider, messages=[message], project=turn.project, agent=turn.agent_name)
        step = forest.Step(message, b"", turn.model, place.projection)
        above = forest.node_ref(db, bytes.fromhex(turn.parent_hash)) if turn.parent_hash else None
        prepared, placed = forest.Prepared(whole, [step]), forest.Placed([place], new=1)
        conversations.claim(db, prepared, placed, above, self._ingest.strip)

    def _insert(self, db: apsw.Connection, turn: ops.CarriedTurn, hash_: bytes) -> forest.NodeRef:
        above = forest.node_ref(db, bytes.fromhex(turn.parent_hash)) if turn.parent_hash else None
        if above is None and turn.parent_hash:
            raise InvalidParams(f"turn {turn.hash} follows {turn.parent_hash}, which does not exist", field="turns")
        content = content_json(turn.content)
        own_projection = bytes.fromhex(turn.projection)
        if not turn.gone:
            named = {"role": turn.role, "model": turn.model, "provider": turn.provider, "agent": turn.agent_name}
            if node_hash(canonical(content, parent=turn.parent_hash, **named)) != hash_:
                raise InvalidParams(f"turn {turn.hash}: the hash does not match the content", field="turns")
            own_projection = projection(above.projection if above else b"", turn.role, turn.content, self._ingest.strip)
        elif len(own_projection) != PROJECTION_BYTES:
            raise InvalidParams(f"turn {turn.hash} is deleted and has no projection", field="turns")
        columns = {
            "reply": turn.reply,
            "role": turn.role,
            "model": turn.model,
            "provider": turn.provider,
            "agent": turn.agent_name,
            "project": turn.project,
            "at": turn.at,
            "gone": True,
            "found": False,
            "content": b"[]",
        }
        if not (turn.gone or forest.is_barred(db, own_projection)):
            prompt = db.execute("SELECT prompt_id FROM prompt WHERE digest=?", (bytes.fromhex(turn.prompt),)).get
            columns |= {
                "gone": False,
                "found": self._ingest.is_found(Message(role=turn.role, content=turn.content)),
                "content": content,
                "stop_reason": turn.stop_reason,
                "usage": forest.as_json(turn.usage),
                "thinking": forest.as_json(turn.thinking),
                "prompt_id": prompt,
            }
        return forest.insert(db, above, hash_, own_projection, columns)


def _turn(row: list[Any], holders: list[ops.CarriedMembership]) -> ops.CarriedTurn:
    fields = dict(zip(_FIELDS, row, strict=True))
    fields |= {name: bool(fields[name]) for name in ("reply", "gone")}
    fields["content"] = forest.read_blocks(fields["content"])
    fields["usage"] = msgspec.json.decode(fields["usage"] or "null")
    fields["thinking"] = msgspec.json.decode(fields["thinking"] or "[]")
    return ops.CarriedTurn(**fields, conversations=holders)


def _holders(db: apsw.Connection, node_id: int) -> Iterator[ops.CarriedMembership]:
    """Yield the conversations of a turn, each with the model calls counted there."""
    for each in list(conversations.memberships(db, node_id)):
        calls = [
            ops.CarriedCall(key=key.hex(), model=model, usage=forest.read_usage(usage))
            for key, model, usage in db.execute(
                "SELECT key, model, usage FROM call JOIN conversation USING(conversation_id)"
                " WHERE node_id=? AND name=? ORDER BY key",
                (node_id, each.name),
            )
        ]
        stated = [ops.CarriedTitle(kind=kind, text=text) for kind, text in titles.of_first_turn(db, each.name, node_id)]
        yield ops.CarriedMembership(**{**each._asdict(), "name": each.name.hex()}, calls=calls, titles=stated)


def _hold(db: apsw.Connection, node_id: int, given: ops.CarriedMembership) -> None:
    about = {name: getattr(given, name) for name in conversations.Membership._fields}
    id_ = conversations.restore(db, node_id, conversations.Membership(**{**about, "name": bytes.fromhex(given.name)}))
    known = {kind for kind, _ in titles.of(db, id_)}
    stated = [Title(kind=TitleKind(each.kind), text=each.text) for each in given.titles if each.kind not in known]
    titles.store(db, id_, stated)
    db.executemany(
        "INSERT OR IGNORE INTO call(key, conversation_id, node_id, model, usage) VALUES(?, ?, ?, ?, ?)",
        ((bytes.fromhex(call.key), id_, node_id, call.model, forest.as_json(call.usage)) for call in given.calls),
    )
