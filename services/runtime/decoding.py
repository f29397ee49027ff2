"""Having `decode` look at what may be hostile: which of its failures say something of the content, and for good."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import trio

from proto.errors import Kind, LinckiaError, OperationError
from proto.operation import Params

R = TypeVar("R")

SOON_MS: Final = 1000


class Undecodable(OperationError):
    """The decoder has died of it twice: it is not to be tried again. The message is what to say of the content."""


async def decoded(call: Callable[[Params[R]], Awaitable[R]], params: Params[R]) -> R:
    """What `decode` makes of it.

    Args:
        call: of a `Context` or an `Environment`.

    Raises:
        Undecodable: to be kept with the content.
        LinckiaError: the decoder is not there for now, which says nothing of the content.
    """
    while True:
        try:
            return await call(params)
        except LinckiaError as error:
            failure = error.failure
            if failure.kind is Kind.QUARANTINED:
                cause = failure.message.partition(" while ")[0].partition(";")[0]
                why = "it breaks the decoder, or takes more memory than a file may have"
                raise Undecodable(f"{cause} of it, twice: {why}; it is not tried again") from None
            if failure.kind is not Kind.UNAVAILABLE or not 0 < (failure.retry_after_ms or 0) <= SOON_MS:
                raise
            # Another file has ended its process; the deadline bounds how often.
            await trio.sleep((failure.retry_after_ms or 0) / 1000)
