"""What a service exchanges with MCP clients beyond plain results: content, questions and events.

A result type here carries `__mcp_content__ = True`: it is passed to the client as it is, with no structured content
made of it. Binary data is `bytes`; it becomes base64 where the protocol wants text. Names are the protocol's on the
wire (`mimeType`, `isError`) and Python's in code.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, TypeAlias

import msgspec

# Content


class Wire(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Base of content: absent means absent on the wire, never null."""


class TextContents(Wire, frozen=True, kw_only=True):
    """The contents of a resource that is text."""

    uri: str
    text: str
    mime_type: str | None = None


class BlobContents(Wire, frozen=True, kw_only=True):
    """The contents of a resource that is binary."""

    uri: str
    blob: bytes
    mime_type: str | None = None


class Text(Wire, frozen=True, kw_only=True, tag_field="type", tag="text"):
    """A text block."""

    text: str


class Image(Wire, frozen=True, kw_only=True, tag_field="type", tag="image"):
    """An image block."""

    data: bytes
    mime_type: str


class Audio(Wire, frozen=True, kw_only=True, tag_field="type", tag="audio"):
    """An audio block."""

    data: bytes
    mime_type: str


class Embedded(Wire, frozen=True, kw_only=True, tag_field="type", tag="resource"):
    """A resource within the content itself; `Embedded(resource=TextContents(…))`."""

    resource: Any


Block: TypeAlias = Text | Image | Audio | Embedded


class Content(Wire, frozen=True, kw_only=True):
    """The result of a tool as content blocks."""

    __mcp_content__: ClassVar[bool] = True
    content: list[Block]
    structured_content: dict[str, Any] | None = None
    is_error: bool = False


class ResourceResult(Wire, frozen=True, kw_only=True):
    """The result of reading a resource, where one plain text, bytes or JSON value will not do."""

    __mcp_content__: ClassVar[bool] = True
    contents: list[Any]


class Message(Wire, frozen=True, kw_only=True):
    """One message of a prompt."""

    role: Literal["user", "assistant"]
    content: Block


class PromptResult(Wire, frozen=True, kw_only=True):
    """A prompt, filled in."""

    __mcp_content__: ClassVar[bool] = True
    messages: list[Message]
    description: str | None = None


# Questions, by `Context.ask_client`, of an operation with `asks=True`.  In the revisions with a handshake a question is
# a request to the client.  In 2026-07-28 the call is answered with the questions, and the client makes it again with
# its answers: the handler is then run *again from its start*, and finds the answers where it asks.  So ask before
# anything is changed, and ask the same questions in the same order.

INPUTS = "linckia/inputs"
"""The method of several questions at once, each under a name of the handler's choice:
`{"inputs": {name: {"method": …, "params": {…}}}}`, answered by `{name: result}`.  A single question
asked by its plain method gets a name of the kernel's."""

CAPABILITIES = "linckia/capabilities"
"""The method that answers the capabilities which the client declared (`{"sampling": {}, …}`); it is not asked."""

CAPABILITY_OF = {"elicitation/create": "elicitation", "sampling/createMessage": "sampling", "roots/list": "roots"}
"""The methods of single questions, and the capability that a client must have declared to be asked so."""

MISSING_CAPABILITY = -32021
"""`Failure.code` of a question that the client cannot answer; `data["capability"]` names what it lacks."""

# Events, by `Environment.publish(topic, body)`.

PREFIX = "mcp."
"""Of every topic here."""

LIST_CHANGED = "mcp.list_changed"
"""A list that clients were shown reads otherwise now; the body is a `ListChanged`."""

RESOURCE_UPDATED = "mcp.resource_updated"
"""What a resource holds has changed; the body is a `ResourceUpdated`."""


class ListChanged(msgspec.Struct, frozen=True, kw_only=True):
    """Which list."""

    list: Literal["tools", "prompts", "resources"]


class ResourceUpdated(msgspec.Struct, frozen=True, kw_only=True):
    """Which resource; clients that subscribed to this very URI are told."""

    uri: str
