"""The operations behind `linckia sync`: which turns two databases know, and their joining.

Turns are joined by their hashes, which cover content and parents, so a peer cannot change one. Deletions win over
turns that were stored before, and turns that were stored again after a deletion win over it. What both databases end
with does not depend on which one starts, and every step may be repeated.
"""

from __future__ import annotations

from collections.abc import Iterator

import apsw
import msgspec

from services.runtime.database import Database
from services.runtime.handlers import Context, handles
from services.shared.fact_digests import buckets_of, digest, page
from services.shared.forgetting import ForgettingFeed, request_scrub
from services.transcripts import conversations, dropped, forest
from services.transcripts.database import delete, delete_from
from services.transcripts.importing import release
from services.transcripts.operations import joining as ops
from services.transcripts.operations.carry import CarriedMembership, CarriedTurn
from services.transcripts.transfer import PAGE_BYTES, Transfer, hold, read_turn

Known = tuple[bytes, ops.Kind, bytes, int]
"""A fact: its digest, kind, target and depth."""

# A turn leaves provisional conversations when it joins another one, on each machine by itself.
_FINAL = (
    "(NOT provisional OR NOT EXISTS(SELECT 1 FROM member other JOIN conversation final USING(conversation_id)"
    " WHERE other.node_id=member.node_id AND NOT final.provisional))"
)
_FIRST = "(SELECT node_id FROM member WHERE conversation_id=title.conversation_id ORDER BY node_id LIMIT 1)"


class Joining:
    """The handlers of `linckia sync`."""

    def __init__(self, database: Database, transfer: Transfer, feed: ForgettingFeed) -> None:
        self._database = database
        self._transfer = transfer
        self._feed = feed

    @handles(ops.TranscriptFacts)
    async def facts(self, params: ops.TranscriptFacts, ctx: Context) -> ops.TurnFacts:
        def query(db: apsw.Connection) -> ops.TurnFacts:
            found = _facts(db)
            if not params.buckets:
                return ops.TurnFacts(format=ops.FORMAT, buckets=buckets_of(name for name, *_ in found))
            listed, covered = page(((each[0], each) for each in found), params.buckets)
            return ops.TurnFacts(format=ops.FORMAT, covered=covered, facts=[_shown(db, each) for each in listed])

        return await self._database.read(query)

    @handles(ops.TranscriptTurns)
    async def turns(self, params: ops.TranscriptTurns, ctx: Context) -> ops.ChosenTurns:
        def query(db: apsw.Connection) -> ops.ChosenTurns:
            turns: list[CarriedTurn] = []
            prompts: dict[str, None] = {}
            done, left = 0, PAGE_BYTES
            for done, hash_ in enumerate(params.hashes, 1):  # noqa: B007  # the last count is returned
                if (found := read_turn(db, bytes.fromhex(hash_))) is None:
                    continue
                turn, prompt = found
                turns.append(turn)
                left -= len(msgspec.json.encode(turn))
                if prompt and prompt not in prompts:
                    prompts[prompt] = None
                    left -= len(prompt)
                if left < 0:
                    break
            return ops.ChosenTurns(turns=turns, prompts=list(prompts), done=done)

        return await self._database.read(query)

    @handles(ops.TranscriptJoin)
    async def join(self, params: ops.TranscriptJoin, ctx: Context) -> ops.JoinedTurns:
        def change(db: apsw.Connection) -> ops.JoinedTurns:
            dropped.note_joins(db)
            deleted = sum(_drop(db, each) for each in params.dropped)
            before = db.total_changes()
            db.executemany("INSERT OR IGNORE INTO barred VALUES(?)", ((bytes.fromhex(one),) for one in params.barred))
            for text in params.prompts:
                forest.keep_prompt(db, text)
            left = 0
            for turn in params.turns:
                gone = _empty(db, turn)
                deleted += gone
                left += not self._put(db, turn)
            if params.prompts:
                # Those of turns that were not stored.
                unused = "NOT EXISTS(SELECT 1 FROM node WHERE node.prompt_id=prompt.prompt_id)"
                db.execute(f"DELETE FROM prompt WHERE {unused}")
            if deleted:
                request_scrub(db)
                release(db)
            return ops.JoinedTurns(added=db.total_changes() - before, deleted=deleted, left=left)

        joined = await self._database.write(change)
        self._feed.outbox.hurry()
        if joined.deleted:
            await self._database.checkpoint()
        return joined

    def _put(self, db: apsw.Connection, turn: CarriedTurn) -> bool:
        """Store a turn as far as it was not deleted here; return whether it could be."""
        hash_ = bytes.fromhex(turn.hash)
        place = forest.node_ref(db, hash_)
        if place is None:
            if not turn.gone and dropped.is_dropped(db, dropped.ALL, hash_):
                return False
            if turn.parent_hash and forest.node_ref(db, bytes.fromhex(turn.parent_hash)) is None:
                return False
            place = self._transfer.insert(db, turn, hash_)
        elif turn.reply and not turn.gone:
            db.execute(
                "UPDATE node SET reply=1, stop_reason=?2, usage=?3, thinking=iif(thinking='', ?4, thinking)"
                " WHERE node_id=?1 AND NOT reply AND NOT gone",
                (place.node_id, turn.stop_reason, forest.as_json(turn.usage), forest.as_json(turn.thinking)),
            )
        for holder in _final(db, place.node_id, turn.conversations):
            if not dropped.is_dropped(db, bytes.fromhex(holder.name), hash_):
                hold(db, place.node_id, holder, joins=True)
        return True


def _facts(db: apsw.Connection) -> Iterator[Known]:
    """Yield everything that this database knows and another one can join. No text is read except titles."""
    for hash_, gone, reply, depth in db.execute("SELECT hash, gone, reply, depth FROM node"):
        yield digest("turn", hash_, "gone" if gone else "reply" if reply else ""), "turn", hash_, depth
    members = "SELECT name, hash, depth FROM member JOIN conversation USING(conversation_id) JOIN node USING(node_id)"
    # A place holder joins a conversation again if a file repeats it, on this machine only.
    for name, hash_, depth in db.execute(f"{members} WHERE NOT gone AND {_FINAL}"):
        yield digest("member", name, hash_), "member", hash_, depth
    calls = "SELECT key, hash, depth FROM call JOIN node USING(node_id)"
    counted = "NOT gone AND EXISTS(SELECT 1 FROM member WHERE node_id=call.node_id)"
    for key, hash_, depth in db.execute(f"{calls} WHERE {counted}"):
        yield digest("call", key), "call", hash_, depth
    named = "SELECT name, kind, text, hash, depth FROM title JOIN conversation USING(conversation_id)"
    for name, kind, text, hash_, depth in db.execute(f"{named} JOIN node ON node.node_id={_FIRST} AND NOT gone"):
        yield digest("title", name, kind, text), "title", hash_, depth
    for (projection,) in db.execute("SELECT projection FROM barred"):
        yield digest("barred", projection), "barred", projection, 0
    for hash_, name, at_ns, returned_ns in db.execute("SELECT hash, name, at_ns, returned_ns FROM dropped"):
        yield digest("dropped", hash_, name, at_ns, returned_ns), "dropped", hash_ + name, 0


def _shown(db: apsw.Connection, fact: Known) -> ops.TurnFact:
    name, kind, target, depth = fact
    if kind != "dropped":
        return ops.TurnFact(digest=name.hex(), kind=kind, target=target.hex(), depth=depth)
    hash_, conversation = target[:32], target[32:]
    of = "SELECT at_ns, returned_ns FROM dropped WHERE hash=? AND name=?"
    ((at_ns, returned_ns),) = db.execute(of, (hash_, conversation))
    gone = ops.DroppedTurn(name=conversation.hex(), hash=hash_.hex(), at_ns=at_ns, returned_ns=returned_ns)
    return ops.TurnFact(digest=name.hex(), kind=kind, target=hash_.hex(), dropped=gone)


def _drop(db: apsw.Connection, given: ops.DroppedTurn) -> int:
    """Delete a turn that was deleted elsewhere, unless it has returned; return how many were deleted."""
    name, hash_ = bytes.fromhex(given.name), bytes.fromhex(given.hash)
    place = forest.node_ref(db, hash_)
    if not dropped.merge(db, name, hash_, given.at_ns, given.returned_ns) or place is None:
        return 0
    if name == dropped.ALL:
        return 0 if forest.find(db, given.hash) is None else _delete(db, place.node_id)
    id_ = conversations.named(db, given.name)
    held = "SELECT 1 FROM member WHERE conversation_id=? AND node_id=?"
    if id_ is None or db.execute(held, (id_, place.node_id)).get is None:
        return 0
    gone = delete_from(db, id_, place.node_id, descendants=False, noted=False)
    return len(gone.hashes) + gone.shared


def _empty(db: apsw.Connection, turn: CarriedTurn) -> int:
    """Delete the content of a turn that has none elsewhere; return how many were deleted."""
    node = forest.find(db, turn.hash) if turn.gone else None
    return 0 if node is None else _delete(db, node.node_id)


def _delete(db: apsw.Connection, node_id: int) -> int:
    return len(delete(db, node_id, descendants=False, bar=False, noted=False).hashes)


def _final(db: apsw.Connection, node_id: int, given: list[CarriedMembership]) -> list[CarriedMembership]:
    """Return the memberships that are stored: a turn leaves provisional conversations once it is in another one."""
    final = [each for each in given if not each.provisional]
    return final if final or any(not each.provisional for each in conversations.memberships(db, node_id)) else given
