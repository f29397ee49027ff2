"""Names of nodes: the SHA-256 of the canonical JSON (RFC 8785) of a message and its parent's name.

    sha256({"content": {"content": [blocks], "model": …, "provider": …, "role": …, "type": "message"}, "parent": …})

The frame has fixed keys, which are written in their canonical order at once; what a tool was called with may hold
anything, and is written by the library. A second name, the projection, leaves out who carried the message (model,
provider, agent) and what agents change each time they repeat it: a conversation is recognised by it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import rfc8785

from proto.ops.transcripts import Block

_encode = msgspec.json.Encoder().encode

PROJECTION_BYTES = 16


class OutOfRange(ValueError):
    """A number that JSON's canonical form has no way to write."""


def canonical_json(value: Any) -> bytes:
    """RFC 8785.  Raises OutOfRange."""
    try:
        return rfc8785.dumps(value)
    except rfc8785.IntegerDomainError:
        # To JSON a number is a double, whatever it looks like.
        return rfc8785.dumps(_as_doubles(value))
    except rfc8785.CanonicalizationError as error:
        raise OutOfRange(str(error)) from None


def _as_doubles(value: Any) -> Any:
    match value:
        case bool():
            return value
        case int():
            try:
                return float(value)
            except OverflowError:
                raise OutOfRange("a number is out of the range of JSON") from None
        case dict():
            return {key: _as_doubles(item) for key, item in value.items()}
        case list():
            return [_as_doubles(item) for item in value]
        case _:
            return value


def content_json(blocks: Sequence[Block]) -> bytes:
    """The canonical form of a message's content.  Raises OutOfRange."""
    return b"[%b]" % b",".join(map(_block_json, blocks))


def _block_json(block: Block) -> bytes:
    if block.tool_input is None:
        return _encode(block)
    # The struct's fields are written in the order of their names; the arguments are put in as they are to stand there.
    changes: dict[str, Any] = {"tool_input": msgspec.Raw(canonical_json(block.tool_input))}
    return _encode(msgspec.structs.replace(block, **changes))


def canonical(content: bytes, *, role: str, model: str, provider: str, agent: str = "", parent: str = "") -> bytes:
    """The bytes that are hashed; `content` is canonical itself."""
    agent_name = b'"agent_name":%b,' % _encode(agent) if agent else b""
    names = (_encode(model), _encode(provider), _encode(role))
    bucket = b'{%b"content":%b,"model":%b,"provider":%b,"role":%b,"type":"message"}' % (agent_name, content, *names)
    return b'{"content":%b,"parent":"%b"}' % (bucket, parent.encode())


def node_hash(canonical_form: bytes) -> bytes:
    return hashlib.sha256(canonical_form).digest()


def projection(parent: bytes, role: str, blocks: Sequence[Block], strip: Callable[[str], str]) -> bytes:
    """The name under which a message is recognised when it comes back, after `parent` (a projection, or empty).

    Args:
        strip: takes out what agents put into messages of their own accord.
    """
    said: list[object] = [role]
    for block in blocks:
        text = strip(block.text)
        if block.text and not text.strip():
            continue
        arguments = None if block.tool_input is None else canonical_json(_telling(block.tool_input)).decode()
        image, call = (block.image_url, block.image_base64), (block.tool_use_id, block.tool_name, arguments)
        result = (block.tool_result_id, strip(block.tool_output), block.is_error)
        said.append((block.type, text, *image, *call, *result))
    return hashlib.sha256(parent + _encode(said)).digest()[:PROJECTION_BYTES]


def _telling(arguments: dict[str, Any]) -> dict[str, Any]:
    """Without zero values: a streamed call names them, and the same call sent back leaves them out."""
    return {key: value for key, value in arguments.items() if value or (isinstance(value, float) and math.isnan(value))}
