"""Nodes of a Merkle DAG, as tapes keeps and serves them: `{hash, parent_hash, bucket, stop_reason, usage, project}`."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from proto.ops.transcripts import Block
from services.transcripts.layouts import Layout, Step, seconds
from services.transcripts.messages import ASSISTANT, Message, text_block
from services.transcripts.providers.wire import Json, child, items, text


class Nodes(Layout, kw_only=True):
    """Parents come before what follows them."""

    name: ClassVar[str] = "nodes"

    def read(self, record: Json) -> list[Step] | None:
        bucket = child(record, "bucket")
        if not text(record, "hash") or not text(bucket, "role"):
            return None
        usage, stop_reason = child(record, "usage"), text(record, "stop_reason")
        message = Message(
            role=text(bucket, "role"),
            content=_blocks(bucket),
            reply=text(bucket, "role") == ASSISTANT and bool(usage or stop_reason),
            stop_reason=stop_reason,
            usage=usage or None,
            at=seconds(record.get("created_at")),
        )
        return [
            Step(
                messages=[message],
                after=_key(text(record, "parent_hash")),
                keys=[_key(text(record, "hash"))],
                provider=text(bucket, "provider"),
                model=text(bucket, "model"),
                agent=text(bucket, "agent_name"),
                project=text(record, "project"),
            )
        ]


def _key(hash_: str) -> str:
    return f"node/{hash_}" if hash_ else ""


def _blocks(bucket: Json) -> list[Block]:
    if said := text(bucket, "content"):
        return [text_block(said)]
    given = [{"is_error": False, **item} for item in items(bucket, "content") if isinstance(item, dict)]
    found: list[Block] = []
    for item in given:
        try:
            found.append(msgspec.convert(item, Block))
        except msgspec.ValidationError:
            found.append(text_block(text(item, "text")))
    return found
