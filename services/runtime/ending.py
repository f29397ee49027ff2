"""How a service ends because of the program that it runs."""

from __future__ import annotations

from typing import TypeVar, cast

EXIT_FAILED = 1


class ProgramEnded(Exception):
    """The program has ended, and the service ends with it. The message is the cause, which the log and `status` show.

    `code` is the exit code of the process: `EXIT_FAILED`, or one of those in `proto.wire.launch`.
    """

    def __init__(self, cause: str, code: int = EXIT_FAILED) -> None:
        super().__init__(cause)
        self.code = code


E = TypeVar("E", bound=BaseException)


def first_of(group: BaseExceptionGroup[E]) -> E:
    """Return the first of the errors in nested groups."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return cast("E", error)
