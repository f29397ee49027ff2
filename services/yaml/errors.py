"""The only exception of the YAML library, with the error codes that its callers see.

Every refusal is a `YamlError`: its code is the kind of error, its message says where (line:column, path) and what would
be right. An operation that raises it has changed nothing.
"""

from enum import IntEnum

from proto.errors import OperationError


class Code(IntEnum):
    """Error codes of the YAML operations, as in JSON-RPC."""

    IO = -32000
    PARSE = -32001
    NOT_FOUND = -32002
    NOT_APPLICABLE = -32003
    INVALID_PARAMS = -32602


class YamlError(OperationError):
    """A refusal, with a one-line message for the caller.

    `data` contains the content hashes `expected` and `found` of a failed `if_match`.
    """

    def __init__(self, code: Code, message: str, data: dict[str, str] | None = None) -> None:
        super().__init__(message, code=int(code), data=data)
        self.code = code
        self.message = message


class NotApplicable(YamlError):
    """The change cannot be made at this path."""

    def __init__(self, message: str, data: dict[str, str] | None = None) -> None:
        super().__init__(Code.NOT_APPLICABLE, message, data)


class SyntaxFault(Exception):
    """Text that is not YAML 1.2: the reason, and the character offset at which it was noticed."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.message = message
        self.offset = offset


def line_and_column(text: str, offset: int) -> tuple[int, int]:
    """Return the 1-based line and column (in characters) of an offset. Only LF, CR and CRLF end a line."""
    head = text[:offset]
    line = 1 + head.count("\n") + head.count("\r") - head.count("\r\n")
    return line, offset - max(head.rfind("\n"), head.rfind("\r"))
