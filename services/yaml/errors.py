"""The one exception of the YAML library, with the error codes that its callers see.

Every refusal is a `YamlError`: its code says which kind, its message says where (line:column, path) and what would be
right. An operation that raises it has changed nothing.
"""

from enum import IntEnum

from linckia.proto.errors import OperationError


class Code(IntEnum):
    """Error codes of the YAML operations, as JSON-RPC carries them."""

    IO = -32000
    PARSE = -32001
    NOT_FOUND = -32002
    NOT_APPLICABLE = -32003
    INVALID_PARAMS = -32602


class YamlError(OperationError):
    """A refusal, with one line for the caller.

    `data` are the content hashes `expected` and `found` of a refused `if_match`.
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
    """Text that is not YAML 1.2: what is wrong, and the character offset where it was noticed."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.message = message
        self.offset = offset


def line_and_column(text: str, offset: int) -> tuple[int, int]:
    """The 1-based line and column (in characters) of an offset; LF, CR and CRLF end a line, nothing else does."""
    head = text[:offset]
    line = 1 + head.count("\n") + head.count("\r") - head.count("\r\n")
    return line, offset - max(head.rfind("\n"), head.rfind("\r"))
