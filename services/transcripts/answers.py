"""Results that contain whole conversations, assembled from stored JSON.

Content goes from the database to the client's message without being decoded, unless the client asks for another form.
Structs provide the frame, and content that is already JSON is embedded as `msgspec.Raw`.
"""

from __future__ import annotations

import bisect
import datetime
import re
from collections.abc import Sequence
from typing import Any, cast

import apsw
import msgspec
from msgspec import Raw
from msgspec.structs import replace

from proto.errors import InvalidParams
from proto.wire.frames import Written
from services.transcripts.forest import StoredMessage, chain, lineage, prompt_text, read_blocks, read_usage
from services.transcripts.forest import tree as forest_tree
from services.transcripts.listing import stated
from services.transcripts.messages import IMAGE, call_text, read_text
from services.transcripts.operations.conversations import (
    Block,
    Checkout,
    Form,
    History,
    HistoryMessage,
    Json,
    SpentTokens,
    Tree,
    TreeNode,
)
from services.transcripts.operations.pages import (
    ConversationPage,
    FoundTurn,
    FoundTurns,
    ShownBlock,
    ShownTurn,
    Spent,
    TranscriptFind,
    TranscriptPage,
)
from services.transcripts.prices import Prices
from services.transcripts.providers import anthropic, openai

PAGE_CHARS = 8000
"""Length of a page of text: about 2,000 tokens."""

CUT_CHARS = 500
"""Longest tool arguments or output on such a page; a search finds the rest."""

PREVIEW_CHARS = 300

SHOWN_CHARS = 20_000
TOOL_CHARS = 2_000
"""Longest text, and longest arguments or result of a tool call, on a page for a person, who can ask for the rest."""

_CURSOR = re.compile(r"(\d{1,9})-(\d{1,9})")


def written(result: msgspec.Struct) -> Written:
    """Encode a result, parts of which may already be JSON."""
    return Written(msgspec.json.encode(result))


def history(db: apsw.Connection, node: int, hash_: str) -> History:
    """Return the conversation up to a node; only for `written`."""
    messages: list[HistoryMessage] = []
    above = ""
    rows = lineage(db, node, "hash, role, content, model, provider, agent, stop_reason, usage")
    for digest, role, content, model, provider, agent, stop_reason, usage in rows:
        name = digest.hex()
        messages.append(
            HistoryMessage(
                hash=name,
                parent_hash=above,
                role=role,
                content=cast("list[Block]", Raw(content)),
                model=model,
                provider=provider,
                agent_name=agent,
                stop_reason=stop_reason,
                usage=cast("Json", Raw(usage)) if usage else None,
            )
        )
        above = name
    return History(messages=messages, head_hash=hash_, depth=len(messages))


def tree(db: apsw.Connection, root: int, limit: int) -> Tree:
    """Return the tree of conversations from this root."""
    found = forest_tree(db, root, limit + 1)
    return Tree(nodes=[_tree_node(*each) for each in found[:limit]], complete=len(found) <= limit)


def _tree_node(node: StoredMessage, parent_hash: str) -> TreeNode:
    usage = node.tokens or {}
    total = usage.get("total_tokens")
    return TreeNode(
        hash=node.hash,
        parent_hash=parent_hash,
        role=node.role,
        preview=_readable(node.blocks)[:PREVIEW_CHARS],
        model=node.model,
        agent=node.agent,
        at=_time(node.at),
        tokens=total if isinstance(total, int) else None,
    )


def checkout(db: apsw.Connection, head: StoredMessage, form: Form | None, cursor: str | None = None) -> Checkout:
    """Return the messages up to `head`, root first; messages with deleted content are skipped.

    Only for `written`. Raises InvalidParams for an unknown cursor.
    """
    form = form or (Form.ANTHROPIC if head.provider == anthropic.NAME else Form.OPENAI)
    path = lineage(db, head.node_id, "role, content, gone, prompt_id")
    found = Checkout(
        messages=[],
        system="",
        head_hash=head.hash,
        depth=len(path),
        model=head.model,
        provider=head.provider,
        form=form,
    )
    if form is Form.TEXT:
        text, next_cursor = _page(path, cursor)
        return replace(found, text=text, next_cursor=next_cursor)
    system = prompt_text(db, next((prompt for *_, prompt in reversed(path) if prompt is not None), None))
    kept: list[tuple[str, bytes]] = [(role, content) for role, content, gone, _ in path if not gone]
    if form is Form.STORED:
        stored = [{"role": role, "content": Raw(content)} for role, content in kept]
        return replace(found, messages=stored, system=system)
    read = [(role, read_blocks(content)) for role, content in kept]
    if form is Form.OPENAI:
        before = [{"role": "system", "content": system}] if system else []
        return replace(found, messages=[*before, *openai.write(read)])
    spoken = [(role, blocks) for role, blocks in read if role not in ("system", "developer")]
    said = [block.text for role, blocks in read if role in ("system", "developer") for block in blocks]
    system = "\n\n".join(part for part in (system, *said) if part)
    return replace(found, messages=anthropic.write(spoken), system=system)


def _page(path: Sequence[tuple[Any, ...]], cursor: str | None) -> tuple[str, str | None]:
    """Return a page of readable text and the next cursor. A cursor names a turn and a character in it."""
    at = _CURSOR.fullmatch(cursor or "0-0")
    if at is None or int(at[1]) > len(path):
        raise InvalidParams("parameter `cursor`: not a cursor of this conversation's text", field="cursor")
    turn, start = int(at[1]), int(at[2])
    parts: list[str] = []
    left = PAGE_CHARS
    while turn < len(path) and left > 0:
        role, content, gone, _ = path[turn]
        whole = "" if gone else f"## {role}\n\n{_readable(read_blocks(content))}\n\n"
        parts.append(whole[start : start + left])
        left -= len(parts[-1])
        start += len(parts[-1])
        if start >= len(whole):
            turn, start = turn + 1, 0
    return "".join(parts), f"{turn}-{start}" if turn < len(path) else None


def _readable(blocks: Sequence[Block]) -> str:
    parts = []
    for block in blocks:
        if block.type == IMAGE:
            parts.append(f"[{block.media_type or 'image'}]")
        elif block.text:
            parts.append(block.text)
        elif said := call_text(block) if block.tool_name else block.tool_output:
            more = len(said) - CUT_CHARS
            parts.append(said if more <= 0 else f"{said[:CUT_CHARS]} … ({more} characters more)")
    return "\n".join(parts)


# For a person


def page(db: apsw.Connection, head: StoredMessage, params: TranscriptPage) -> tuple[ConversationPage, list[int]]:
    """Return a page of the conversation up to `head`, and the ids of all its nodes."""
    ids = chain(db, head.node_id)
    first = params.first
    if params.turn is not None:
        row = db.execute("SELECT node_id FROM node WHERE hash=?", (bytes.fromhex(params.turn),)).fetchone()
        at = bisect.bisect_left(ids, row[0]) if row is not None else 0
        first = at // params.limit * params.limit if at < len(ids) and row is not None and ids[at] == row[0] else 0
    first = min(first, max(0, len(ids) - 1))
    columns = "hash, role, content, at, model, agent, usage, gone"
    rows = db.execute(
        f"SELECT {columns} FROM node WHERE node_id IN (SELECT value FROM json_each(?)) ORDER BY node_id",
        (json_list(ids[first : first + params.limit]),),
    )
    turns = []
    for number, (digest, role, content, at, model, agent, usage, gone) in enumerate(rows, first):
        total = read_usage(usage).get("total_tokens")
        turns.append(
            ShownTurn(
                hash=digest.hex(), number=number, role=role, at=_time(at), model=model, agent=agent, gone=bool(gone),
                tokens=total if isinstance(total, int) else None,
                blocks=[] if gone else [_shown(block) for block in read_blocks(content)],
            )
        )  # fmt: skip
    after = db.execute("SELECT 1 FROM node WHERE parent=? LIMIT 1", (head.node_id,)).fetchone()
    return ConversationPage(turns=turns, first=first, total=len(ids), continues=after is not None), ids


def spent(db: apsw.Connection, head: StoredMessage, ids: Sequence[int], prices: Prices) -> Spent:
    """Return the tokens and the cost of these nodes."""
    query = "SELECT model, usage FROM node WHERE node_id IN (SELECT value FROM json_each(?)) AND usage <> ''"
    used = stated(db.execute(query, (json_list(ids),)))
    cost, unpriced = prices.cost(used)
    tokens = SpentTokens(
        input=sum(each.input for each in used.values()), output=sum(each.output for each in used.values()),
        estimated=False,
    )  # fmt: skip
    models = sorted(filter(None, used)) or list(filter(None, [head.model]))
    return Spent(models=models, agent=head.agent, tokens=tokens, cost_usd=cost, cost_incomplete=bool(unpriced))


def find_turns(db: apsw.Connection, head: StoredMessage, params: TranscriptFind) -> FoundTurns:
    """Return the turns up to `head` that contain all words of the query."""
    words = [word.casefold() for word in params.query.split()]
    if not words:
        raise InvalidParams("parameter `query`: has no word", field="query")
    ids = chain(db, head.node_id)
    # SQLite finds words as they are in JSON, and ignores the case of ASCII letters only; so others are compared below.
    likely = [word for word in words if word.isascii() and word.isalnum()]
    where = "".join(" AND instr(lower(CAST(content AS TEXT)), ?) > 0" for _ in likely)
    query = (
        "SELECT node_id, hash, role, content FROM node WHERE node_id IN (SELECT value FROM json_each(?)) AND NOT gone"
        f"{where} ORDER BY node_id"
    )
    found: list[FoundTurn] = []
    total = 0
    for node_id, digest, role, content in db.execute(query, (json_list(ids), *likely)):
        text = read_text(read_blocks(content))
        places = [text.casefold().find(word) for word in words]
        if min(places) < 0:
            continue
        total += 1
        if len(found) < params.limit:
            start = max(0, min(places) - PREVIEW_CHARS // 4)
            number = bisect.bisect_left(ids, node_id)
            preview = "…" * bool(start) + text[start : start + PREVIEW_CHARS]
            found.append(FoundTurn(hash=digest.hex(), number=number, role=role, preview=preview))
    return FoundTurns(turns=found, total=total)


def json_list(ids: Sequence[int]) -> str:
    """Encode ids for `json_each`."""
    return msgspec.json.encode(ids).decode()


def _shown(block: Block) -> ShownBlock:
    if block.type == IMAGE:
        return ShownBlock(type=IMAGE, media_type=block.media_type, size=len(block.image_base64))
    if block.tool_name:
        text = "" if block.tool_input is None else msgspec.json.encode(block.tool_input).decode()
    else:
        text = block.text or block.tool_output
    most = SHOWN_CHARS if block.text else TOOL_CHARS
    return ShownBlock(
        type=block.type, text=text[:most], size=len(text), tool=block.tool_name, is_error=block.is_error,
        call=block.tool_use_id or block.tool_result_id,
    )  # fmt: skip


def _time(at: float) -> str:
    return datetime.datetime.fromtimestamp(at, datetime.UTC).isoformat(timespec="seconds") if at else ""
