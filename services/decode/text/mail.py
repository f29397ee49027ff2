"""Mail as text: the main headers, the body, and attachments."""

from __future__ import annotations

import contextlib
import email
import re
from collections.abc import Callable, Iterator
from email.header import decode_header, make_header
from email.message import Message
from typing import Final

from services.decode.results import Writer
from services.shared.text.charsets import charset_of, codec_of
from services.shared.text.html import plain

_HEADS: Final = ("From", "To", "Cc", "Date")
_MAX_HEAD: Final = 4000
_QUOTED: Final = re.compile(rb"^>From ", re.MULTILINE)
MAX_DEPTH: Final = 3
"""Deepest nesting of messages in messages, and of documents in them."""
_FROM: Final = re.compile(rb"(?:\A|(?<=\n\n)|(?<=\n\r\n))From [^\n]*\n")

Attached = Callable[[bytes, str, int, Writer], None]
"""Writes an attachment's text, given its bytes, its name, and its depth."""


def mbox(data: bytes, out: Writer, attached: Attached) -> None:
    """Write the messages of a mailbox, one after another."""
    starts = [match.end() for match in _FROM.finditer(data)]
    ends = [*[match.start() for match in _FROM.finditer(data)][1:], len(data)]
    for number, (start, end) in enumerate(zip(starts, ends, strict=True), 1):
        mail(_QUOTED.sub(b"From ", data[start:end]), out, attached)
        out.place = f"message {number} of {len(starts)}"


def mail(data: bytes, out: Writer, attached: Attached, depth: int = 0) -> None:
    """Write a message; attachments follow its body, as far as text can be extracted."""
    _message(email.message_from_bytes(data), out, attached, depth)


def _message(message: Message, out: Writer, attached: Attached, depth: int) -> None:
    out.block(f"{'#' * (depth + 1)} {_head(message, 'Subject') or '(no subject)'}")
    out.block("\n".join(f"{name}: {text}" for name in _HEADS if (text := _head(message, name))))
    parts = list(_parts(message))
    for part in parts:
        if not _is_attached(part):
            out.block(_body(part))
    for part in parts:
        if _is_attached(part):
            _attachment(part, out, attached, depth + 1)


def _head(message: Message, name: str) -> str:
    """Return a decoded header."""
    raw = str(message.get(name, ""))[:_MAX_HEAD]
    with contextlib.suppress(ValueError, LookupError):
        raw = str(make_header(decode_header(raw)))
    return " ".join(raw.split())


def _parts(message: Message) -> Iterator[Message]:
    """Yield the parts to read; of alternatives the plain one, or else the last."""
    if message.get_content_type() == "message/rfc822" or not message.is_multipart():
        yield message
        return
    children = [child for child in message.get_payload() if isinstance(child, Message)]
    if message.get_content_type() == "multipart/alternative" and children:
        texts = [one for one in children if one.get_content_type() == "text/plain" and _body(one).strip()]
        children = (texts or children[-1:])[:1]
    for child in children:
        yield from _parts(child)


def _is_attached(part: Message) -> bool:
    is_text = part.get_content_maintype() == "text"
    return not is_text or part.get_content_disposition() == "attachment" or part.get_filename() is not None


def _body(part: Message) -> str:
    payload = part.get_payload(decode=True)
    if not isinstance(payload, bytes):
        return ""
    declared = codec_of(part.get_content_charset(""))
    text = payload.decode(declared, "replace") if declared else charset_of(payload).decode(payload)
    text = text.replace("\r\n", "\n")
    return plain(text) if part.get_content_type() == "text/html" else text


def _attachment(part: Message, out: Writer, attached: Attached, depth: int) -> None:
    inner = part.get_payload(0) if part.get_content_type() == "message/rfc822" and part.is_multipart() else None
    payload = part.get_payload(decode=True)
    data = payload if isinstance(payload, bytes) else b""
    name = " ".join((part.get_filename() or "").split())[:200]
    description = f"{name or '(no name)'} ({part.get_content_type()}, {len(data)} bytes)"
    out.block(f"Attached: {description if inner is None else 'a message'}")
    if depth >= MAX_DEPTH:
        return
    if isinstance(inner, Message):
        _message(inner, out, attached, depth)
    elif part.get_content_maintype() == "text":
        out.block(_body(part))
    else:
        attached(data, name, depth, out)
