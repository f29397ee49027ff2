"""Answers that hold whole conversations, as JSON that is put together from the JSON that is kept.

Content goes from the database to the client's message unread: a conversation has a thousand turns, and an answer five
of them. The Structs of the declarations give the frame, and what is JSON already stands in them as `msgspec.Raw`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, cast

import apsw
import msgspec
from msgspec import Raw

from proto.errors import InvalidParams
from proto.frames import Written
from proto.ops.transcripts import Block, Checkout, Form, History, HistoryMessage, Json, LineageTurn
from services.transcripts import forest
from services.transcripts.forest import Node, lineage, prompt_text, read_blocks
from services.transcripts.messages import IMAGE, call_text, read_text
from services.transcripts.providers import anthropic, openai

_encode = msgspec.json.Encoder().encode

_HEAD, _TAIL = b'[{"is_error":false,"text":', b',"type":"text"}]'
_MEMBERS = 2
"""How often a comma and a quotation mark follow each other in a content of one text.  Further members would add to it;
a string does so only where it ends with a comma, since within it each quotation mark has a backslash before it."""


def written(result: msgspec.Struct) -> Written:
    """A result, some of which may be JSON already."""
    return Written(_encode(result))


def only_text(content: bytes) -> Raw | None:
    """The text of a message that consists of one text, as the JSON string that it is kept as; None of any other."""
    if content.startswith(_HEAD) and content.endswith(_TAIL) and content.count(b',"') == _MEMBERS:
        return Raw(content[len(_HEAD) : -len(_TAIL)])
    return None


def history(db: apsw.Connection, node: int, hash_: str) -> History:
    """The conversation up to a node; only for `written`."""
    messages: list[HistoryMessage] = []
    above = ""
    rows = forest.lineage(db, node, "hash, role, content, model, provider, agent, stop_reason, usage")
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


def told(rows: Sequence[tuple[Any, ...]], *, as_text: bool) -> list[LineageTurn]:
    """Turns of these hashes, roles and contents, with their texts; without `as_text` only for `written`."""
    turns: list[LineageTurn] = []
    for digest, role, content in rows:
        text = None if as_text else only_text(content)
        read = read_text(read_blocks(content)) if text is None else cast("str", text)
        turns.append(LineageTurn(hash=digest.hex(), role=role, text=read))
    return turns


def checkout(db: apsw.Connection, head: Node, form: Form | None, cursor: str | None = None) -> Checkout:
    """The messages up to `head`, root first; a place whose content was deleted is passed over.

    Only for `written`.  Raises InvalidParams where the cursor is none.
    """
    if form is Form.TEXT:
        return _page(db, head, cursor)
    form = form or (Form.ANTHROPIC if head.provider == anthropic.NAME else Form.OPENAI)
    path = lineage(db, head.node_id, "role, content, gone, prompt_id")
    system = prompt_text(db, next((prompt for *_, prompt in reversed(path) if prompt is not None), None))
    told: list[tuple[str, bytes]] = [(role, content) for role, content, gone, _ in path if not gone]
    messages: list[dict[str, Any]] = []
    if form is Form.STORED:
        messages = [{"role": role, "content": Raw(content)} for role, content in told]
    elif form is Form.OPENAI:
        if system:
            messages.append({"role": "system", "content": system})
            system = ""
        for role, content in told:
            text = only_text(content)
            # In this form each message is written by itself.
            messages += (
                [{"role": role, "content": text}] if text is not None else openai.write([(role, read_blocks(content))])
            )
    else:
        decoded = [(role, read_blocks(content)) for role, content in told]
        spoken = [(role, blocks) for role, blocks in decoded if role not in ("system", "developer")]
        said = [block.text for role, blocks in decoded if role in ("system", "developer") for block in blocks]
        system = "\n\n".join(part for part in (system, *said) if part)
        messages = anthropic.write(spoken)
    return Checkout(
        messages=messages,
        system=system,
        head_hash=head.hash,
        depth=len(path),
        model=head.model,
        provider=head.provider,
        form=form,
    )


PAGE_CHARS = 8000
"""Of a page of text: about 2,000 tokens."""

CUT_CHARS = 500
"""Of a tool's arguments and output in such a page; a search finds the rest."""


def _page(db: apsw.Connection, head: Node, cursor: str | None) -> Checkout:
    """What was said, to be read; from where `cursor` says: the turn, and the character in it."""
    path = lineage(db, head.node_id, "role, content, gone")
    at = _CURSOR.fullmatch(cursor or "0-0")
    if at is None or int(at[1]) > len(path):
        raise InvalidParams("parameter `cursor` is none that this conversation's text has given", field="cursor")
    turn, start = int(at[1]), int(at[2])
    parts: list[str] = []
    left = PAGE_CHARS
    while turn < len(path) and left > 0:
        role, content, gone = path[turn]
        whole = "" if gone else f"## {role}\n\n{_readable(read_blocks(content))}\n\n"
        parts.append(whole[start : start + left])
        left -= len(parts[-1])
        start += len(parts[-1])
        if start >= len(whole):
            turn, start = turn + 1, 0
    return Checkout(
        messages=[], system="", head_hash=head.hash, depth=len(path), model=head.model, provider=head.provider,
        form=Form.TEXT, text="".join(parts), next_cursor=f"{turn}-{start}" if turn < len(path) else None,
    )  # fmt: skip


_CURSOR = re.compile(r"(\d{1,9})-(\d{1,9})")


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
