"""Results that contain whole conversations, assembled from stored JSON.

Content goes from the database to the client's message without being decoded, unless the client asks for another form.
Structs provide the frame, and content that is already JSON is embedded as `msgspec.Raw`.
"""

from __future__ import annotations

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
from services.transcripts.forest import StoredMessage, lineage, prompt_text, read_blocks
from services.transcripts.forest import tree as forest_tree
from services.transcripts.messages import IMAGE, call_text
from services.transcripts.operations.conversations import (
    Block,
    Checkout,
    Form,
    History,
    HistoryMessage,
    Json,
    Tree,
    TreeNode,
)
from services.transcripts.providers import anthropic, openai

PAGE_CHARS = 8000
"""Length of a page of text: about 2,000 tokens."""

CUT_CHARS = 500
"""Longest tool arguments or output on such a page; a search finds the rest."""

PREVIEW_CHARS = 300

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
        at=datetime.datetime.fromtimestamp(node.at, datetime.UTC).isoformat(timespec="seconds") if node.at else "",
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
