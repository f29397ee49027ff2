"""Extracted text of PDFs and office documents, and the raw bytes of any file."""

from __future__ import annotations

import base64

from proto.errors import InvalidParams, OperationError
from proto.ops.decode import DOCUMENT_TYPES, TEXTUAL_TYPES, DecodedText, DecodeText
from services.files import paths
from services.files.operations.text import FileSource, FileText
from services.runtime.calls import Undecodable, decoded
from services.runtime.handlers import Context
from services.runtime.rewrite import content_hash
from services.shared.text.texts import Text

ORIGINAL_BYTES = 300_000
"""Most bytes in one answer."""
_CONTAINERS = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1")
"""Magic numbers of office documents, which other file types share."""


def is_document(data: bytes, path: str) -> bool:
    """True if text has to be extracted from the file, because it is a document rather than text."""
    if data.startswith(b"%PDF-"):
        return True
    extension = f".{paths.extension(path.rpartition('/')[2])}"
    return data.startswith(_CONTAINERS) and extension in DOCUMENT_TYPES.keys() - TEXTUAL_TYPES.keys()


async def extracted(data: bytes, path: str, ctx: Context) -> tuple[Text, str]:
    """Extract the text of a document. Returns it with the reason why it is incomplete, if it is. Raises OperationError
    if it has no text."""
    try:
        made = await decoded(ctx.call, DecodeText(data=data))
    except Undecodable as error:
        made = DecodedText(text=None, problem=str(error))
    if made.text is None:
        raise OperationError(
            f"`path`: {path[:1000]} has no text: {made.problem}; set `original` to read its bytes", field="path"
        )
    return Text(made.text, "utf-8"), made.problem or ""


def original(data: bytes, offset: int) -> FileText:
    """Return as many bytes of a file as fit into an answer, as base64. Raises InvalidParams if it ends before
    `offset`."""
    if offset > len(data):
        raise InvalidParams(f"`offset` is {offset}, but the file has {len(data)} bytes", field="offset")
    end = min(offset + ORIGINAL_BYTES, len(data))
    return FileText(
        text=base64.b64encode(data[offset:end]).decode(), lines="", total_lines=0, bytes=len(data), encoding="base64",
        hash=content_hash(data), source=FileSource.ORIGINAL, next_offset=end if end < len(data) else 0,
    )  # fmt: skip
