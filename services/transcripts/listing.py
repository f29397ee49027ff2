"""The list of conversations: all turns that begin alike are one, with title, size, tokens and what they cost.

What is told of a conversation is worked out when it is listed, and stored in the table `talk` until one of its turns
changes: triggers of the database take the row away, in the transaction of the change. So a title goes with its turn.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import apsw
import msgspec
import trio

from proto.errors import InvalidParams
from proto.ops.transcripts import Conversation, Conversations, Order, SpentTokens, TranscriptList
from services.runtime import times
from services.runtime.database import Database
from services.runtime.handlers import Context, handles
from services.runtime.storage import DiskFull
from services.transcripts.forest import read_blocks
from services.transcripts.messages import ASSISTANT
from services.transcripts.prices import AS_OF, Prices, Tokens
from services.transcripts.providers.wire import count

TITLE_CHARS = 100
_INSTRUCTIONS = ("# AGENTS.md instructions", "Caveat: The messages below")
"""How texts begin that an agent sends in the person's name."""

CHARS_A_TOKEN = 4
"""Of a reply whose provider told no figures."""

_LAST_S = 253_402_300_799
"""The end of the year 9999."""

BATCH_TURNS = 5_000
"""In one transaction: new turns wait for it a quarter of a second."""
PATIENCE_S = 10.0
"""For conversations that were never listed: what is left over is said."""

_NEW = (
    "SELECT node_id FROM node WHERE parent IS NULL AND NOT EXISTS(SELECT 1 FROM talk WHERE talk.root=node.node_id)"
    " ORDER BY node_id DESC LIMIT ?"
)
_TURNS = (
    "SELECT node_id, parent, hash, role, length(content), model, agent, provider, project, at, usage, gone"
    " FROM node WHERE root=? ORDER BY node_id"
)
_ORDERS: dict[Order, str] = {
    "newest": "ended",
    "oldest": "-began",
    "turns": "turns",
    "tokens": "input + output",
    "cost": "coalesce(cost, -1)",
}

_TOLD = ("title", "project", "agent", "provider", "model", "turns", "bytes")


class Listing:
    """The handler."""

    def __init__(self, database: Database, strip: Callable[[str], str], prices: Prices) -> None:
        self._database = database
        self._strip = strip
        self._prices = prices
        self._stored = trio.Lock()

    @handles(TranscriptList)
    async def list_them(self, params: TranscriptList, ctx: Context) -> Conversations:
        where, bindings = _conditions(params)
        place = _place(params)
        degraded = await self._store()

        def query(db: apsw.Connection) -> Conversations:
            found = f"FROM talk WHERE {' AND '.join(where)}"
            ((total, cost),) = db.execute(f"SELECT count(*), sum(cost) {found}", bindings)
            by = _ORDERS[params.sort]
            after = "" if place is None else f" AND ({by}, root) < (?, ?)"
            of = f"{by}, root, lower(hex(head)), {', '.join(_TOLD)}, began, ended, input, output, estimated, cost"
            asked = (*bindings, *(place or ()), params.limit + 1)
            rows = list(db.execute(f"SELECT {of} {found}{after} ORDER BY 1 DESC, 2 DESC LIMIT ?", asked))
            last = rows[params.limit - 1] if len(rows) > params.limit else None
            return Conversations(
                conversations=[_told(row) for row in rows[: params.limit]],
                total=total,
                cost_usd=None if cost is None else round(cost, 6),
                prices_of=AS_OF,
                next_cursor=None if last is None else f"{params.sort}:{last[0]!r}:{last[1]}",
                degraded=degraded,
            )

        return await self._database.read(query)

    async def _store(self) -> list[str]:
        """Bring the table in step; answers what is missing in it."""
        async with self._stored:
            try:
                with trio.move_on_after(PATIENCE_S):
                    await self._database.write(partial(_forget_other_prices, digest=self._prices.digest))
                    while await self._database.read(lambda db: list(db.execute(_NEW, (1,)))):
                        await self._database.write(self._store_some)
            except DiskFull as error:
                return [f"conversations that changed are not listed: {error}"]
        ((left,),) = await self._database.read(lambda db: list(db.execute(f"SELECT count(*) FROM ({_NEW})", (-1,))))
        return [f"{left} conversations are still to be counted; list them again"] if left else []

    def _store_some(self, db: apsw.Connection) -> None:
        turns = 0
        for (root,) in list(db.execute(_NEW, (BATCH_TURNS,))):
            rows = list(db.execute(_TURNS, (root,)))
            marks = ",".join("?" * 16)
            db.execute(f"INSERT OR REPLACE INTO talk VALUES({marks})", (root, *self._summary(db, rows)))
            turns += len(rows)
            if turns >= BATCH_TURNS:
                break

    def _summary(self, db: apsw.Connection, rows: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
        """The row of a conversation, whose turns these are, less its number."""
        used, estimated = spent([(row[0], row[1], row[3], row[4], row[5], row[10]) for row in rows if not row[11]])
        there = [row for row in rows if not row[11]]
        head = there[-1] if there else rows[-1]
        title = next(filter(None, (self._title(db, row[0]) for row in there if row[3] == "user")), "")

        def last(column: int) -> str:
            return next((row[column] for row in reversed(there) if row[column]), "")

        model = next((row[5] for row in reversed(there) if row[5] and row[3] == ASSISTANT), last(5))
        project = next((row[8] for row in there if row[8]), "")
        times = [row[9] for row in there] or [0.0]
        return (
            head[2], title, title.casefold(), project, last(6), last(7), model, min(times), max(times), len(there),
            sum(row[4] for row in there), sum(each.input for each in used.values()),
            sum(each.output for each in used.values()), estimated, self._prices.cost(used),
        )  # fmt: skip

    def _title(self, db: apsw.Connection, node_id: int) -> str:
        """The first line that a person said in a turn."""
        ((content,),) = db.execute("SELECT content FROM node WHERE node_id=?", (node_id,))
        for block in read_blocks(content):
            line = self._strip(block.text).strip().partition("\n")[0].strip()
            if line and not line.startswith(_INSTRUCTIONS):
                return line[:TITLE_CHARS]
        return ""


def spent(turns: Sequence[tuple[int, int | None, str, int, str, str]]) -> tuple[dict[str, Tokens], bool]:
    """Tokens by model, and whether some are an estimate: of a reply without figures, all that stood before it was sent.

    `turns`: number, the number of what it follows, role, size, model, and the figures as JSON.
    """
    used: dict[str, Tokens] = defaultdict(Tokens)
    before: dict[int | None, int] = {None: 0}
    estimated = False
    for node_id, parent, role, size, model, usage in turns:
        sent = before.get(parent, 0)
        before[node_id] = sent + size
        if role != ASSISTANT:
            continue
        figures = msgspec.json.decode(usage, type=dict[str, Any]) if usage else {}
        prompt, completion = count(figures, "prompt_tokens"), count(figures, "completion_tokens")
        tokens = used[model]
        if not prompt and not completion:
            estimated = True
            tokens.input += sent // CHARS_A_TOKEN
            tokens.output += size // CHARS_A_TOKEN
            continue
        tokens.input += prompt
        # Some count what was thought in the total alone.
        tokens.output += max(completion, count(figures, "total_tokens") - prompt)
        tokens.read += count(figures, "cache_read_input_tokens")
        tokens.written += count(figures, "cache_creation_input_tokens")
    return dict(used), estimated


def _forget_other_prices(db: apsw.Connection, digest: str) -> None:
    if db.execute("SELECT value FROM setting WHERE name='prices'").get != digest:
        db.execute("DELETE FROM talk")
        db.execute("INSERT OR REPLACE INTO setting VALUES('prices', ?)", (digest,))


def _conditions(params: TranscriptList) -> tuple[list[str], list[Any]]:
    where, bindings = ["turns > 0"], []
    if project := params.project.rstrip("/"):
        where.append("(project = ? OR substr(project, 1, ?) = ?)")
        bindings += [project, len(project) + 1, f"{project}/"]
    if params.agent:
        where.append("? IN (agent, provider)")
        bindings.append(params.agent)
    if (since := times.instant(params.since, "since")) is not None:
        where.append("ended >= ?")
        bindings.append(since / times.NS)
    if (until := times.instant(params.until, "until", end=True)) is not None:
        where.append("began <= ?")
        bindings.append(until / times.NS)
    for word in params.query.casefold().split():
        where.append("instr(sought, ?) > 0")
        bindings.append(word)
    return where, bindings


def _place(params: TranscriptList) -> tuple[float, int] | None:
    if params.cursor is None:
        return None
    try:
        sort, value, root = params.cursor.split(":")
        if sort == params.sort:
            return float(value), int(root)
    except ValueError:
        pass
    raise InvalidParams(f"parameter `cursor` is none that a list by {params.sort} has given", field="cursor")


def _told(row: tuple[Any, ...]) -> Conversation:
    _, _, head, *rest = row
    named, (began, ended, sent, answered, estimated, cost) = rest[: len(_TOLD)], rest[len(_TOLD) :]
    return Conversation(
        hash=head, began=_time(began), ended=_time(ended), cost_usd=cost, **dict(zip(_TOLD, named, strict=True)),
        tokens=SpentTokens(input=sent, output=answered, estimated=bool(estimated)),
    )  # fmt: skip


def _time(at: float) -> str:
    # A log may say anything; milliseconds, for instance.
    return times.rfc3339(int(min(max(at, 0), _LAST_S)) * times.NS)
