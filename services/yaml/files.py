"""Files on disk: identified by their real path, which must be below a root, read whole, and decoded.

The text is UTF-8 with or without a byte order mark, or UTF-16 of either order. Decoding is strict, so encoding the text
again gives the same bytes; a byte order mark is the text's first character.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from services.runtime.rewrite import Contended, TooLarge
from services.runtime.roots import OutsideRoots, Roots
from services.yaml.errors import Code, YamlError

DEFAULT_MAX_BYTES: Final = 16 * 1024 * 1024


def resolve(roots: Roots, file: str, *, write: bool = False, field: str = "file") -> Path:
    """Return the real path of a file below the roots.

    Raises YamlError (-32000), InvalidParams for a relative path that could be below several roots, and Denied if it may
    not be read, or written.
    """
    if not roots.reachable:
        raise YamlError(Code.IO, f"cannot read {file!r}: there are no roots")
    path = roots.absolute(file, field)
    try:
        real = Path(path).resolve(strict=True)
    except OSError as fault:
        near = roots.similar(path, file) if isinstance(fault, FileNotFoundError) else ""
        raise YamlError(Code.IO, f"cannot read {file!r}: {fault.strerror}{near}") from None
    except (RuntimeError, ValueError) as fault:  # a loop of symbolic links, a NUL character
        raise YamlError(Code.IO, f"cannot read {file!r}: {fault}") from None
    if not roots.holds(str(real)):
        raise YamlError(Code.IO, f"{file} is outside the roots: {', '.join(roots.reachable)}")
    roots.check(str(real), write=write, field=field)
    return real


@contextlib.contextmanager
def file_errors(path: Path, max_bytes: int) -> Iterator[None]:
    """Convert file errors to YamlError: -32000, or -32001 for a file over the size limit."""
    try:
        yield
    except OSError as fault:
        raise YamlError(Code.IO, f"cannot read {path}: {fault.strerror}") from None
    except (OutsideRoots, Contended) as fault:
        raise YamlError(Code.IO, str(fault)) from None
    except TooLarge:
        raise YamlError(Code.PARSE, f"{path} is larger than the limit of {max_bytes} bytes") from None


@dataclass(frozen=True, slots=True)
class Source:
    """The content of a file. `digest` is the SHA-256 of the bytes in hexadecimal, which `if_match` is compared with."""

    raw: bytes
    text: str
    encoding: str
    digest: str

    def encode(self, text: str) -> bytes:
        """Encode a text in this source's own encoding."""
        return text.encode(self.encoding)


def _encoding_of(raw: bytes) -> str:
    """Return the encoding, by byte order mark or by the zero bytes of the first character (YAML 1.2.2, 5.2)."""
    head = raw[:4]
    marked = head in (b"\0\0\xfe\xff", b"\xff\xfe\0\0")
    if marked or head[1:4] == b"\0\0\0" or (head[:3] == b"\0\0\0" and len(head) == 4):
        raise YamlError(Code.IO, "the file is UTF-32: save it as UTF-8 to edit it")
    if head[:2] == b"\xfe\xff" or (len(head) > 1 and head[0] == 0 and head[1] != 0):
        return "utf-16-be"
    if head[:2] == b"\xff\xfe" or (len(head) > 1 and head[1] == 0 and head[0] != 0):
        return "utf-16-le"
    return "utf-8"


def read_source(raw: bytes) -> Source:
    """Decode a file's bytes. Raises YamlError (-32000) if they are neither UTF-8 nor UTF-16."""
    encoding = _encoding_of(raw)
    try:
        text = raw.decode(encoding)
    except UnicodeDecodeError as fault:
        name = encoding.upper()
        raise YamlError(Code.IO, f"the file is not {name}: {fault.reason} at byte {fault.start}") from None
    return Source(raw, text, encoding, sha256(raw).hexdigest())
