"""Declarations of HTTP routes: an operation has `http=Route(…)`; a request of another shape is an `Endpoint`.

Both are declared in `proto.ops`, found by its `load`, and served by `services.front.web`, which knows none of them by
name.
"""

from __future__ import annotations

from typing import ClassVar, Protocol, TypeVar

import msgspec

from proto.errors import InvalidParams
from proto.operation import Params, Route

R = TypeVar("R")

CONTENT_PATH = "/api/content"
"""Path under which files are served, with `?path=`."""

FILE_CHUNK_BYTES = 128 * 1024
"""Maximum part of a file that is requested at once."""


class HttpError(InvalidParams):
    """A refusal with an HTTP status; `error_code` names it for programs."""

    def __init__(self, status: int, message: str, *, field: str | None = None, error_code: str | None = None) -> None:
        super().__init__(message, field=field)
        self.status = status
        self.error_code = error_code


class FileChunk(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a file: the result of operations whose route serves files. They take `path`, `offset` and `limit`."""

    data: bytes
    size: int
    """Size of the whole file in bytes."""
    mime_type: str
    version: str
    """Identifies the content: chunks with different versions do not belong together."""
    modified: float
    """Modification time in seconds since 1970."""


class Call(Protocol):
    """Calls operations for an endpoint, as the client. Raises LinckiaError."""

    async def __call__(self, params: Params[R], /) -> R:
        """Return the result."""

    async def json(self, params: Params[object], /) -> msgspec.Raw:
        """Return the result as JSON, without encoding it again if its service has written it as JSON."""


class Endpoint(Params[object], frozen=True, kw_only=True):
    """An HTTP request whose shape differs from that of an operation, as in OpenAI's API.

    It is answered with operations of `service`.
    """

    route: ClassVar[Route]
    service: ClassVar[str]

    async def answer(self, call: Call) -> object:
        """Return the response, which is sent as JSON, by default with status 200.

        Raises:
            LinckiaError: its field is named as in the request.
        """
        # A Struct cannot be an abstract class.
        raise NotImplementedError


class Answer(msgspec.Struct, frozen=True):
    """A response with its own status."""

    status: int
    body: object
