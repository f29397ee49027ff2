"""A file's bytes as text and back: UTF-8 with or without a byte order mark, and UTF-16 of either order.

Decoding is strict, so encoding the text again gives the same bytes; a byte order mark is the text's first character.
"""

from dataclasses import dataclass
from hashlib import sha256

from services.yaml.errors import Code, YamlError


@dataclass(frozen=True, slots=True)
class Source:
    """The content of one file. `digest` is the SHA-256 of the bytes, in hexadecimal: what `if_match` compares."""

    raw: bytes
    text: str
    encoding: str
    digest: str

    def encode(self, text: str) -> bytes:
        """A text in this source's own encoding."""
        return text.encode(self.encoding)


def detect_encoding(raw: bytes) -> str:
    """The encoding by byte order mark or by the zero bytes of the first character (YAML 1.2.2, 5.2)."""
    head = raw[:4]
    if (
        head in (b"\x00\x00\xfe\xff", b"\xff\xfe\x00\x00")
        or (len(head) == 4 and head[:3] == b"\0\0\0")
        or head[1:4] == b"\0\0\0"
    ):
        raise YamlError(Code.IO, "the file is UTF-32: save it as UTF-8 to edit it")
    if head[:2] == b"\xfe\xff" or (len(head) > 1 and head[0] == 0 and head[1] != 0):
        return "utf-16-be"
    if head[:2] == b"\xff\xfe" or (len(head) > 1 and head[1] == 0 and head[0] != 0):
        return "utf-16-le"
    return "utf-8"


def read_source(raw: bytes) -> Source:
    """Decode a file's bytes. Raises YamlError (-32000) where they are neither UTF-8 nor UTF-16."""
    encoding = detect_encoding(raw)
    try:
        text = raw.decode(encoding)
    except UnicodeDecodeError as fault:
        name = encoding.upper()
        raise YamlError(Code.IO, f"the file is not {name}: {fault.reason} at byte {fault.start}") from None
    return Source(raw, text, encoding, sha256(raw).hexdigest())
