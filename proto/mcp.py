"""MCP's own declarations (revisions, keys, error codes), and what a service exchanges with clients beyond plain
results: content, questions and events.

Result types here have `__mcp_content__ = True`: they are passed to the client unchanged, and no structured content is
made of them. Binary data is `bytes`, and becomes base64 where the protocol requires text. Names are those of the
protocol on the wire (`mimeType`, `isError`) and Python's in code.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

# Revisions

HANDSHAKE_VERSIONS: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""Revisions that start with `initialize`, oldest first; a client that asks for an unknown one gets the latest."""

MODERN_VERSIONS: Final = ("2026-07-28",)
"""Revisions in which every request carries an envelope, and that have `server/discover`."""

BATCH_VERSIONS: Final = frozenset(HANDSHAKE_VERSIONS[:2])
"""Revisions that have batches."""

# Messages

TOOLS_CALL: Final = "tools/call"

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
UNSUPPORTED_VERSION: Final = -32022
"""The server does not speak the requested revision; its error names those it does."""

RequestId: TypeAlias = int | str

# Members of `_meta`. Those of the protocol make up the envelope of a request since 2026-07-28.

OWN: Final = "io.modelcontextprotocol/"
"""Prefix of the protocol's own."""

VERSION: Final = OWN + "protocolVersion"
CLIENT_CAPABILITIES: Final = OWN + "clientCapabilities"
CLIENT_INFO: Final = OWN + "clientInfo"
LOG_LEVEL: Final = OWN + "logLevel"
SERVER_INFO: Final = OWN + "serverInfo"

KEY: Final = "io.linckia/idempotency-key"
"""The idempotency key of a request."""

TASK: Final = "io.linckia/task"
"""In a request, true asks for a task; in a result, it is the task."""

FAILURE: Final = "linckia/failure"
"""The failure of a tool, in its result."""

TASKS_EXTENSION: Final = OWN + "tasks"
SKILLS_EXTENSION: Final = OWN + "skills"


class RequestMeta(msgspec.Struct, gc=False):
    """`_meta` of a request as every revision has it."""

    progress_token: RequestId | UnsetType = msgspec.field(default=UNSET, name="progressToken")
    # Any type: an invalid traceparent is ignored and does not fail the call.
    traceparent: Any = None
    # Unchecked.
    key: Any = msgspec.field(default=UNSET, name=KEY)
    task: Any = msgspec.field(default=None, name=TASK)


# Content


class Wire(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Base of content: absent fields are absent on the wire, never null."""


class TextContents(Wire, frozen=True, kw_only=True):
    """The contents of a text resource."""

    uri: str
    text: str
    mime_type: str | None = None


class BlobContents(Wire, frozen=True, kw_only=True):
    """The contents of a binary resource."""

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
    """A resource embedded in content; `Embedded(resource=TextContents(…))`."""

    resource: Any


Block: TypeAlias = Text | Image | Audio | Embedded


class Content(Wire, frozen=True, kw_only=True):
    """The result of a tool as content blocks."""

    __mcp_content__: ClassVar[bool] = True
    content: list[Block]
    structured_content: dict[str, Any] | None = None
    is_error: bool = False


class ResourceResult(Wire, frozen=True, kw_only=True):
    """The result of reading a resource, if a plain text, bytes or JSON value is not enough."""

    __mcp_content__: ClassVar[bool] = True
    contents: list[Any]


class Message(Wire, frozen=True, kw_only=True):
    """One message of a prompt."""

    role: Literal["user", "assistant"]
    content: Block


class PromptResult(Wire, frozen=True, kw_only=True):
    """A prompt with its arguments filled in."""

    __mcp_content__: ClassVar[bool] = True
    messages: list[Message]
    description: str | None = None


# Questions are sent with `Context.ask_client`, by an operation with `asks=True`. In protocol revisions with a
# handshake, a question is a request to the client. In 2026-07-28, the call is answered with the questions, and the
# client makes it again with its answers: the handler then runs *again from the start*, and finds the answers where it
# asks. So ask before changing anything, and ask the same questions in the same order.

INPUTS = "linckia/inputs"
"""Method for several questions at once, each under a name chosen by the handler:
`{"inputs": {name: {"method": …, "params": {…}}}}`, answered with `{name: result}`. A single question asked by its plain
method gets a name from the kernel."""

CAPABILITIES = "linckia/capabilities"
"""Method that returns the capabilities declared by the client (`{"sampling": {}, …}`), without asking it."""

CAPABILITY_OF = {"elicitation/create": "elicitation", "sampling/createMessage": "sampling", "roots/list": "roots"}
"""Methods of single questions, with the capability that a client must have declared for each."""

MISSING_CAPABILITY = -32021
"""`Failure.code` for a question that the client cannot answer; `data["capability"]` names the missing capability."""

# Events are sent with `Environment.publish(topic, body)`.

PREFIX = "mcp."
"""Prefix of all topics here."""

LIST_CHANGED = "mcp.list_changed"
"""A list that clients have seen has changed; the body is a `ListChanged`."""

RESOURCE_UPDATED = "mcp.resource_updated"
"""The contents of a resource have changed; the body is a `ResourceUpdated`."""


class ListChanged(msgspec.Struct, frozen=True, kw_only=True):
    """The list that changed."""

    list: Literal["tools", "prompts", "resources"]


class ResourceUpdated(msgspec.Struct, frozen=True, kw_only=True):
    """The resource that changed; clients that subscribed to this very URI are notified."""

    uri: str
