"""A conversation up to a turn, as messages that a model's API takes."""

from __future__ import annotations

import sqlite3
from typing import Any

from msgspec import Raw

from proto.ops.transcripts import Checkout, Form
from services.transcripts.forest import Node, lineage, prompt_text, read_blocks
from services.transcripts.providers import anthropic, openai
from services.transcripts.writing import only_text


def checkout(db: sqlite3.Connection, head: Node, form: Form | None) -> Checkout:
    """The messages up to `head`, root first; a place whose content was deleted is passed over.

    Only for `writing.written`.
    """
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
            # There each message is written by itself.
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
