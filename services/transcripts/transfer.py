"""The operations behind `linckia export`, `import`, `resume` and `export-chat`: stored turns with their hashes.

A turn whose hash does not match its content is refused. A deleted turn is exported without content, as a place holder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import apsw
import msgspec

from proto.errors import InvalidParams, OperationError
from services.runtime.database import Database
from services.runtime.handlers import Context, handles
from services.transcripts import conversations, forest, titles
from services.transcripts.ingest import Ingest
from services.transcripts.messages import (
    ASSISTANT,
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
from services.transcripts.redaction import Redactor
from services.transcripts.writers import Part, ReadTurn
from services.transcripts.writers.convert import Convert, converter

PAGE_BYTES = 4 * 1024 * 1024
PAGE_TURNS = 2000

_FIELDS = [name for name in ops.CarriedTurn.__struct_fields__ if name != "conversations"]
_SELECT = (
    # For each turn, the fields of `CarriedTurn` in order.
    "SELECT node.node_id, lower(hex(root.hash)), root.at, lower(hex(node.hash)), coalesce(lower(hex(parent.hash)), ''),"
    " node.role, node.at, node.content, node.model, node.provider, node.agent, node.project,"
    " node.machine, node.branch,"
    " coalesce(lower(hex(prompt.digest)), ''), node.reply, node.stop_reason, node.usage, node.thinking, node.gone,"
    " iif(node.gone, lower(hex(node.projection)), '')"
    " FROM node JOIN node root ON root.node_id = node.root LEFT JOIN node parent ON parent.node_id = node.parent"
    " LEFT JOIN prompt ON prompt.prompt_id = node.prompt_id"
)
_TURNS = f"{_SELECT} WHERE node.node_id > ? ORDER BY node.node_id LIMIT ?"

_TURN = (
    "SELECT lower(hex(hash)), role, coalesce(member.at, node.at), model, stop_reason, content, thinking, usage"
    " FROM node LEFT JOIN member ON member.node_id=node.node_id AND member.conversation_id=? WHERE node.node_id=?"
)


class Transfer:
    """The handlers of export and import."""

    def __init__(self, database: Database, ingest: Ingest, redactor: Callable[[], Redactor]) -> None:
        """`redactor` returns the redactor by which everything is masked that a caller wants masked."""
        self._database = database
        self._ingest = ingest
        self._redactor = redactor

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

    @handles(ops.TranscriptConvert)
    async def convert(self, params: ops.TranscriptConvert, ctx: Context) -> ops.Converted:
        write = converter(params, self._redactor)
        return await self._database.read(lambda db: _converted(db, params, write))

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
            place = self.insert(db, turn, hash_)
        for holder in turn.conversations:
            hold(db, place.node_id, holder)
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

    def insert(self, db: apsw.Connection, turn: ops.CarriedTurn, hash_: bytes) -> forest.NodeRef:
        """Insert a turn after its parent. Raises InvalidParams: its hash does not match, or there is no parent."""
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
            "machine": turn.machine,
            "branch": turn.branch,
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


def read_turn(db: apsw.Connection, hash_: bytes) -> tuple[ops.CarriedTurn, str] | None:
    """Return a turn with its system prompt; None if it does not exist."""
    for node_id, _, _, *row in db.execute(f"{_SELECT} WHERE node.hash = ?", (hash_,)):
        turn = _turn(row, list(_holders(db, node_id)))
        text = db.execute("SELECT text FROM prompt WHERE digest=?", (bytes.fromhex(turn.prompt),)).get
        return turn, str(text or "")
    return None


def _converted(db: apsw.Connection, params: ops.TranscriptConvert, write: Convert) -> ops.Converted:
    head, id_ = forest.find(db, params.hash), conversations.named(db, params.about.id)
    if head is None or id_ is None:
        missing = f"turn {params.hash}" if head is None else f"conversation {params.about.id}"
        raise OperationError(f"not found: {missing}")
    path = forest.lineage(db, head.node_id, "node_id, role, lower(hex(hash)), gone")
    members = dict(db.execute("SELECT node_id, side FROM member WHERE conversation_id=?", (id_,)))
    for node_id, *_ in path:
        members.pop(node_id, None)
    before = [hash_ for _, role, hash_, gone in path[: params.after] if not gone and write.takes(role)]
    turns: list[ReadTurn] = []
    deleted = system = 0
    position, left = params.after, PAGE_BYTES
    for node_id, role, _, gone in path[params.after :]:
        # Results are written together with their calls, unless they are very large.
        if (left < 0 and role == ASSISTANT) or left < -4 * PAGE_BYTES or len(turns) >= 2 * PAGE_TURNS:
            break
        position += 1
        if gone:
            deleted += 1
        elif not write.takes(role):
            system += 1
        else:
            ((*row, content, thinking, usage),) = db.execute(_TURN, (id_, node_id))
            left -= len(content) + len(thinking)
            turns.append(_read_turn(row, content, thinking, usage))
    next_ = position if position < len(path) else None
    part = Part(turns, before[-1] if before else "", is_first=not params.after, is_last=next_ is None)
    side = sum(members.values())
    return ops.Converted(
        text=write(part), next=next_, turns=len(turns), system=system, deleted=deleted, side=side,
        elsewhere=len(members) - side,
    )  # fmt: skip


def _read_turn(row: list[Any], content: bytes, thinking: str, usage: str) -> ReadTurn:
    hash_, role, at, model, stop_reason = row
    return ReadTurn(
        hash=hash_, role=role, at=at, content=forest.read_blocks(content), model=model, stop_reason=stop_reason,
        usage=forest.read_usage(usage) or None, thinking=msgspec.json.decode(thinking or "[]"),
    )  # fmt: skip


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


def hold(db: apsw.Connection, node_id: int, given: ops.CarriedMembership, *, joins: bool = False) -> None:
    """Restore a turn's membership in a conversation. With `joins`, the greater of two titles of a kind is kept, so that
    two databases end with the same."""
    about = {name: getattr(given, name) for name in conversations.Membership._fields}
    id_ = conversations.restore(db, node_id, conversations.Membership(**{**about, "name": bytes.fromhex(given.name)}))
    known = dict(titles.of(db, id_))
    stated = [
        Title(kind=TitleKind(each.kind), text=each.text)
        for each in given.titles
        if each.kind not in known or (joins and each.text > known[each.kind])
    ]
    titles.store(db, id_, stated)
    db.executemany(
        "INSERT OR IGNORE INTO call(key, conversation_id, node_id, model, usage) VALUES(?, ?, ?, ?, ?)",
        ((bytes.fromhex(call.key), id_, node_id, call.model, forest.as_json(call.usage)) for call in given.calls),
    )
