"""What HTTP routes consist of: an operation says `http=Route(…)`; a request of another shape is an `Endpoint`.

Both are declared in `proto.ops`, are found by its `load`, and are served by `services.front.web`, which knows none of
them.
"""

from __future__ import annotations

from typing import ClassVar, Protocol, TypeVar

import msgspec

from linckia.proto.errors import InvalidParams
from linckia.proto.operation import Params, Route

R = TypeVar("R")

CONTENT_PATH = "/api/content"
"""Where files are served, by `?path=`."""

FILE_CHUNK_BYTES = 128 * 1024
"""At most so much of a file is asked for at once."""


class HttpError(InvalidParams):
    """A refusal with its status; `error_code` names it for programs."""

    def __init__(self, status: int, message: str, *, field: str | None = None, error_code: str | None = None) -> None:
        super().__init__(message, field=field)
        self.status = status
        self.error_code = error_code


class FileChunk(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a file: the result of operations whose route serves files; they take `path`, `offset` and `limit`."""

    data: bytes
    size: int
    """Bytes of the whole."""
    mime_type: str
    version: str
    """Another one is of another content: the chunks do not fit together."""
    modified: float
    """Seconds since 1970."""


class Call(Protocol):
    """How an endpoint calls operations, in the client's name.  Raises LinckiaError."""

    async def __call__(self, params: Params[R], /) -> R:
        """The result."""

    async def json(self, params: Params[object], /) -> msgspec.Raw:
        """The result as JSON; where its service has written it so, it is not encoded again."""


class Endpoint(Params[object], frozen=True, kw_only=True):
    """A request over HTTP whose shape is not an operation's own (OpenAI's API has it so).

    It is answered by operations of `service`.
    """

    route: ClassVar[Route]
    service: ClassVar[str]

    async def answer(self, call: Call) -> object:
        """What is answered as JSON, by default with status 200.

        Raises:
            LinckiaError: its field in the request's own words.
        """
        # A struct cannot be an abstract class; each route has its own.
        raise NotImplementedError


class Answer(msgspec.Struct, frozen=True):
    """An answer with a status of its own."""

    status: int
    body: object
