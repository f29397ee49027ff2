"""MCP content as Structs: for operations whose result is more than one JSON value.

A result type here carries `__mcp_content__ = True`: it is passed to the client as it is, with no structured content
made of it.  Binary data is `bytes`; it becomes base64 where the protocol wants text.  Names are the protocol's on the
wire (`mimeType`, `isError`) and Python's in code.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import msgspec
from msgspec import Meta


class Wire(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Base of everything here: absent means absent on the wire, never null."""


class Annotations(Wire, frozen=True, kw_only=True):
    """Who a piece of content is for, and how much it matters (0 to 1)."""

    audience: list[Literal["user", "assistant"]] | None = None
    priority: Annotated[float, Meta(ge=0, le=1)] | None = None
    last_modified: Annotated[str, Meta(description="ISO 8601")] | None = None


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
    annotations: Annotations | None = None


class Image(Wire, frozen=True, kw_only=True, tag_field="type", tag="image"):
    """An image block."""

    data: bytes
    mime_type: str
    annotations: Annotations | None = None


class Audio(Wire, frozen=True, kw_only=True, tag_field="type", tag="audio"):
    """An audio block."""

    data: bytes
    mime_type: str
    annotations: Annotations | None = None


class Link(Wire, frozen=True, kw_only=True, tag_field="type", tag="resource_link"):
    """A block that points to a resource the client may read."""

    uri: str
    name: str
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    annotations: Annotations | None = None


class Embedded(Wire, frozen=True, kw_only=True, tag_field="type", tag="resource"):
    """A resource within the content itself; `Embedded(resource=TextContents(…))`."""

    resource: Any
    annotations: Annotations | None = None


Block: TypeAlias = Text | Image | Audio | Link | Embedded


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
