"""A conversation up to a turn, as messages that a model's API takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from proto.ops.transcripts import Checkout, Form
from services.transcripts.forest import Node
from services.transcripts.providers import anthropic, openai


def checkout(path: Sequence[Node], system: str, form: Form | None) -> Checkout:
    """The messages of `path`, root first; a place whose content was deleted is passed over."""
    head = path[-1]
    form = form or (Form.ANTHROPIC if head.provider == anthropic.NAME else Form.OPENAI)
    told = [(node.role, node.blocks) for node in path if not node.gone]
    messages: list[dict[str, Any]]
    if form is Form.STORED:
        messages = [{"role": role, "content": msgspec.to_builtins(blocks)} for role, blocks in told]
    elif form is Form.OPENAI:
        messages = openai.write(told)
        if system:
            messages.insert(0, {"role": "system", "content": system})
            system = ""
    else:
        spoken = [(role, blocks) for role, blocks in told if role not in ("system", "developer")]
        said = [block.text for role, blocks in told if role in ("system", "developer") for block in blocks]
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
