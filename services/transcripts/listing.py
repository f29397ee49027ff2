"""The list of conversations with title, size, tokens and cost.

A conversation's summary is computed when it is listed and stored in the table `talk` until one of its turns changes:
database triggers delete the row in the same transaction. A title therefore disappears with its turn.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import apsw
import msgspec
import trio

from proto.errors import InvalidParams
from services.runtime.database import Database
from services.runtime.handlers import Context, handles
from services.runtime.storage import DiskFull
from services.shared import times
from services.transcripts import titles
from services.transcripts.forest import read_blocks, read_usage
from services.transcripts.messages import ASSISTANT
from services.transcripts.operations.carry import FoundConversations, TranscriptConversations
from services.transcripts.operations.conversations import (
    Conversation,
    Conversations,
    Order,
    SpentTokens,
    TranscriptList,
)
from services.transcripts.operations.pages import Costs, CostShare, TranscriptCosts
from services.transcripts.prices import AS_OF, Prices, Tokens
from services.transcripts.providers.wire import count
from services.transcripts.titles import first_line

TITLE_CHARS = 100
CHARS_A_TOKEN = 4
"""Estimate for a reply whose provider gave no figures."""

_LAST_S = 253_402_300_799
"""The end of the year 9999."""

COSTS_DAYS = 30
"""Days whose costs are shown by default."""

BATCH_TURNS = 5_000
"""Turns summarised per transaction; new turns wait for it a quarter of a second."""
PATIENCE_S = 10.0
"""Time for conversations that were never listed; the result says how many are left."""

_NEW = (
    "SELECT conversation_id, name, project FROM conversation"
    " WHERE NOT EXISTS(SELECT 1 FROM talk WHERE talk.conversation_id=conversation.conversation_id)"
    " ORDER BY conversation_id DESC LIMIT ?"
)
_TURNS = (
    "SELECT node_id, parent, hash, role, length(content) AS size, model, agent, provider, project, member.at, side,"
    " counted, gone FROM member JOIN node USING(node_id) WHERE conversation_id=? ORDER BY number"
)
_ORDERS: dict[Order, str] = {
    "newest": "ended",
    "oldest": "-began",
    "turns": "turns",
    "tokens": "input + output",
    "cost": "coalesce(cost, -1)",
}

_COLUMNS = ("title", "project", "agent", "provider", "model", "turns", "bytes")
_LISTED = (
    f"conversation_id, lower(hex(head)), lower(hex(name)), {', '.join(_COLUMNS)},"
    " began, ended, input, output, estimated, cost, unpriced"
)
_PROMPT, _COMPLETION, _TOTAL = (
    f"coalesce(json_extract(usage, '$.{name}'), 0)" for name in ("prompt_tokens", "completion_tokens", "total_tokens")
)
_CACHED = ", ".join(
    f"sum(coalesce(json_extract(usage, '$.{name}'), 0))"
    for name in ("cache_read_input_tokens", "cache_creation_input_tokens", "cache_creation_1h_input_tokens")
)
# As in `stated`, by day, project and model. Usage was checked when it was stored.
_SPENT = f"""
SELECT day, project, model, count(*), sum({_PROMPT}), sum(max({_COMPLETION}, {_TOTAL} - {_PROMPT})), {_CACHED} FROM (
    SELECT date(node.at + ?, 'unixepoch') AS day,
        coalesce(nullif(conversation.project, ''), node.project) AS project, call.model AS model, call.usage AS usage
    FROM call JOIN node USING(node_id) JOIN conversation ON conversation.conversation_id=call.conversation_id
    WHERE node.at >= ? AND node.at <= ? AND call.usage <> ''
) GROUP BY day, project, model ORDER BY day, project, model
"""
_OF_HASH = "SELECT DISTINCT conversation_id FROM member JOIN node USING(node_id) WHERE hash"
_MOST_FOUND = 100
"""Conversations that are returned for the beginning of a name."""


class Listing:
    """The handlers of the list."""

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
            unpriced = {
                model
                for (models,) in db.execute(f"SELECT DISTINCT unpriced {found}", bindings)
                for model in _models(models)
            }
            by = _ORDERS[params.sort]
            after = "" if place is None else f" AND ({by}, conversation_id) < (?, ?)"
            of = f"{by}, {_LISTED}"
            asked = (*bindings, *(place or ()), params.limit + 1)
            rows = list(db.execute(f"SELECT {of} {found}{after} ORDER BY 1 DESC, 2 DESC LIMIT ?", asked))
            last = rows[params.limit - 1] if len(rows) > params.limit else None
            return Conversations(
                conversations=[_conversation(row) for row in rows[: params.limit]],
                total=total,
                cost_usd=None if cost is None else round(cost, 6),
                cost_incomplete=bool(unpriced),
                unpriced=sorted(unpriced),
                prices_of=AS_OF,
                next_cursor=None if last is None else f"{params.sort}:{last[0]!r}:{last[1]}",
                degraded=degraded,
            )

        return await self._database.read(query)

    @handles(TranscriptConversations)
    async def find_them(self, params: TranscriptConversations, ctx: Context) -> FoundConversations:
        await self._store()

        def query(db: apsw.Connection) -> FoundConversations:
            turn = ""
            if params.name:
                ids, turn = _named(db, params.name)
            else:
                turns = list(dict.fromkeys(params.hashes))
                ids = [id_ for hash_ in turns for (id_,) in db.execute(f"{_OF_HASH}=?", (bytes.fromhex(hash_),))]
            found: list[Conversation] = []
            for id_ in list(dict.fromkeys(ids))[:_MOST_FOUND]:
                for row in db.execute(f"SELECT 0, {_LISTED} FROM talk WHERE conversation_id=? AND turns > 0", (id_,)):
                    found.append(_conversation(row))
            return FoundConversations(conversations=found, turn=turn)

        return await self._database.read(query)

    @handles(TranscriptCosts)
    async def add_costs(self, params: TranscriptCosts, ctx: Context) -> Costs:
        until = times.instant(params.until, "until", end=True)
        since = times.instant(params.since, "since")
        if since is None:
            since = (time.time_ns() if until is None else until) - COSTS_DAYS * times.DAY_NS
        end = _LAST_S if until is None else until / times.NS

        def query(db: apsw.Connection) -> Costs:
            rows = db.execute(_SPENT, (params.offset_s, since / times.NS, end))
            shares = []
            for day, project, model, calls, sent, answered, read, written, written_1h in rows:
                used = Tokens(input=sent, output=answered, read=read, written=written, written_1h=written_1h)
                cost, _ = self._prices.cost({model: used})
                shares.append(
                    CostShare(
                        day=day, project=project, model=model, calls=calls, input=sent, output=answered, cost_usd=cost
                    )
                )
            day = times.rfc3339(since + params.offset_s * times.NS)[:10]
            return Costs(shares=shares, since=day, prices_of=AS_OF)

        return await self._database.read(query)

    async def _store(self) -> list[str]:
        """Update the summary table. Returns warnings about missing entries."""
        async with self._stored:
            try:
                with trio.move_on_after(PATIENCE_S):
                    await self._database.write(partial(_forget_other_prices, digest=self._prices.digest))
                    while await self._database.read(lambda db: list(db.execute(_NEW, (1,)))):
                        await self._database.write(self._store_some)
            except DiskFull as error:
                return [f"conversations that changed are missing from the list: {error}"]
        ((left,),) = await self._database.read(lambda db: list(db.execute(f"SELECT count(*) FROM ({_NEW})", (-1,))))
        return [f"{left} conversations are not summarised yet; list them again"] if left else []

    def _store_some(self, db: apsw.Connection) -> None:
        turns = 0
        for id_, name, project in list(db.execute(_NEW, (BATCH_TURNS,))):
            rows = [_Row(*row) for row in db.execute(_TURNS, (id_,))]
            summary = (id_, name, *self._summary(db, id_, project, rows))
            marks = ",".join("?" * len(summary))
            db.execute(f"INSERT OR REPLACE INTO talk VALUES({marks})", summary)
            # A conversation without turns takes time too.
            turns += len(rows) + 1
            if turns >= BATCH_TURNS:
                break

    def _summary(self, db: apsw.Connection, id_: int, project: str, rows: Sequence[_Row]) -> tuple[Any, ...]:
        """Return the columns of a conversation's row after its name."""
        there = [row for row in rows if not row.gone]
        # Subagents do not name the conversation.
        main = [row for row in there if not row.side] or there
        used = stated(db.execute("SELECT model, usage FROM call WHERE conversation_id=?", (id_,)))
        estimated = estimate(there, used)
        newest = (main or rows)[-1:]
        said = next(filter(None, (self._title(db, row.node_id) for row in main if row.role == "user")), "")
        named = [text for _, text in titles.of(db, id_)]
        title = named[0][:TITLE_CHARS] if named else said
        sought = "\n".join(dict.fromkeys((*named, said))).casefold()

        def last(name: str) -> str:
            return next((value for row in reversed(main) if (value := getattr(row, name))), "")

        model = next((row.model for row in reversed(main) if row.model and row.role == ASSISTANT), last("model"))
        project = project or next((row.project for row in main if row.project), "")
        times = [row.at for row in there] or [0.0]
        cost, unpriced = self._prices.cost(used)
        return (
            newest[0].hash if newest else b"", title, sought, project, last("agent"), last("provider"), model,
            min(times), max(times), len(there), sum(row.size for row in there),
            sum(each.input for each in used.values()), sum(each.output for each in used.values()), estimated, cost,
            msgspec.json.encode(unpriced).decode(),
        )  # fmt: skip

    def _title(self, db: apsw.Connection, node_id: int) -> str:
        """Return the first line that a person wrote in a turn."""
        ((content,),) = db.execute("SELECT content FROM node WHERE node_id=?", (node_id,))
        return first_line(read_blocks(content), self._strip)[:TITLE_CHARS]


class _Row(NamedTuple):
    """A turn of a conversation."""

    node_id: int
    parent: int | None
    hash: bytes
    role: str
    size: int
    model: str
    agent: str
    provider: str
    project: str
    at: float
    side: int
    counted: int
    gone: int


def stated(calls: Iterable[tuple[Any, ...]]) -> dict[str, Tokens]:
    """Return the tokens per model from the log. Each call is a model and its figures as JSON."""
    used: dict[str, Tokens] = defaultdict(Tokens)
    for model, usage in calls:
        figures, tokens = read_usage(usage), used[model]
        prompt, completion = count(figures, "prompt_tokens"), count(figures, "completion_tokens")
        tokens.input += prompt
        # Some providers include thinking only in the total.
        tokens.output += max(completion, count(figures, "total_tokens") - prompt)
        tokens.read += count(figures, "cache_read_input_tokens")
        tokens.written += count(figures, "cache_creation_input_tokens")
        tokens.written_1h += count(figures, "cache_creation_1h_input_tokens")
    return used


def estimate(turns: Sequence[_Row], used: dict[str, Tokens]) -> bool:
    """Add estimates for replies without figures to `used`, assuming that everything before each reply was sent.

    Returns True if there were such replies.
    """
    before: dict[int | None, int] = {None: 0}
    estimated = False
    for turn in turns:
        sent = before.get(turn.parent, 0)
        before[turn.node_id] = sent + turn.size
        if turn.role == ASSISTANT and not turn.counted:
            estimated = True
            used[turn.model].input += sent // CHARS_A_TOKEN
            used[turn.model].output += turn.size // CHARS_A_TOKEN
    return estimated


def _models(encoded: str) -> list[str]:
    return msgspec.json.decode(encoded, type=list[str])


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
    raise InvalidParams(f"parameter `cursor`: not a cursor of a list by {params.sort}", field="cursor")


def _conversation(row: tuple[Any, ...]) -> Conversation:
    _, _, head, name, *rest = row
    named, (began, ended, sent, answered, estimated, cost, unpriced) = (
        rest[: len(_COLUMNS)],
        rest[len(_COLUMNS) :],
    )
    return Conversation(
        id=name, hash=head, began=_time(began), ended=_time(ended), cost_usd=cost,
        **dict(zip(_COLUMNS, named, strict=True)),
        tokens=SpentTokens(input=sent, output=answered, estimated=bool(estimated)),
        cost_incomplete=bool(_models(unpriced)),
    )  # fmt: skip


def _named(db: apsw.Connection, name: str) -> tuple[list[int], str]:
    """Return the conversations whose id begins with these hex digits, or else those of such turns.

    If it is the hash of one turn, this is returned, too.
    """
    first, last = (bytes.fromhex(name.ljust(64, digit)) for digit in "0f")
    half = len(first) // 2
    rows: list[tuple[Any, ...]] = []
    if len(name) <= 2 * half:
        ids = "SELECT conversation_id FROM conversation WHERE name BETWEEN ? AND ? LIMIT ?"
        rows = list(db.execute(ids, (first[:half], last[:half], _MOST_FOUND)))
    if rows:
        return [int(id_) for (id_,) in rows], ""
    rows = list(db.execute(f"{_OF_HASH} BETWEEN ? AND ? LIMIT ?", (first, last, _MOST_FOUND)))
    turns = list(db.execute("SELECT hash FROM node WHERE hash BETWEEN ? AND ? AND NOT gone LIMIT 2", (first, last)))
    return [int(id_) for (id_,) in rows], turns[0][0].hex() if len(turns) == 1 else ""


def _time(at: float) -> str:
    # A log may contain any number, for example milliseconds.
    return times.rfc3339(int(min(max(at, 0), _LAST_S)) * times.NS)
