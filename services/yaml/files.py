"""Files on disk: named by their real path, which must lie under a root, read whole, and decoded.

The text is UTF-8 with or without a byte order mark, or UTF-16 of either order. Decoding is strict, so encoding the text
again gives the same bytes; a byte order mark is the text's first character.
"""

import os
import stat
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from services.yaml.errors import Code, YamlError

DEFAULT_MAX_BYTES: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Roots:
    """The real directories under which files may be read and written."""

    directories: tuple[Path, ...]

    @classmethod
    def of(cls, *paths: str | os.PathLike[str]) -> "Roots":
        """The roots at existing directories, symbolic links resolved. Raises YamlError (-32000)."""
        real = []
        for path in paths:
            try:
                directory = Path(path).resolve(strict=True)
            except OSError as fault:
                raise YamlError(Code.IO, f"the root {os.fspath(path)} cannot be used: {fault.strerror}") from None
            if not directory.is_dir():
                raise YamlError(Code.IO, f"the root {os.fspath(path)} is not a directory")
            real.append(directory)
        return cls(tuple(real))

    def resolve(self, file: str) -> Path:
        """The real path of a file under the roots; a relative one is looked for in each. Raises YamlError (-32000)."""
        if not file or "\0" in file:
            raise YamlError(Code.IO, f"{file!r} is no path of a file")
        candidates = [Path(file)] if os.path.isabs(file) else [root / file for root in self.directories]
        missing: OSError | RuntimeError | None = None
        for candidate in candidates:
            try:
                real = candidate.resolve(strict=True)
            except (OSError, RuntimeError) as fault:  # RuntimeError: a loop of symbolic links
                missing = fault
                continue
            if any(real.is_relative_to(root) for root in self.directories):
                return real
            raise YamlError(Code.IO, f"{file} is outside the roots: {self._shown()}")
        if missing is None:
            raise YamlError(Code.IO, f"{file} cannot be read: there are no roots")
        reason = missing.strerror if isinstance(missing, OSError) else "too many levels of symbolic links"
        raise YamlError(Code.IO, f"{file} cannot be read: {reason}")

    def _shown(self) -> str:
        return ", ".join(str(root) for root in self.directories) or "(none)"


def read_file(path: Path, max_bytes: int = DEFAULT_MAX_BYTES) -> bytes:
    """The bytes of a regular file at a real path. Raises YamlError: -32000, or -32001 for one over the cap."""
    try:
        # Not following a link and not blocking on a FIFO: the path was resolved, so either means a change since then.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as fault:
        raise YamlError(Code.IO, f"{path} cannot be read: {fault.strerror}") from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise YamlError(Code.IO, f"{path} is not a regular file")
    with os.fdopen(descriptor, "rb") as stream:
        if os.path.realpath(f"/proc/self/fd/{descriptor}") != str(path) and os.path.exists("/proc/self/fd"):
            raise YamlError(Code.IO, f"{path} moved while it was opened: try again")
        if status.st_size <= max_bytes:
            try:
                raw = stream.read(status.st_size + 1)
                if len(raw) > status.st_size:  # it grew meanwhile
                    raw += stream.read(max_bytes + 1 - len(raw))
            except OSError as fault:
                raise YamlError(Code.IO, f"{path} cannot be read: {fault.strerror}") from None
            if len(raw) <= max_bytes:
                return raw
    raise YamlError(Code.PARSE, f"{path} is larger than {max_bytes} bytes, the most that is parsed")


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


def _encoding_of(raw: bytes) -> str:
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
    encoding = _encoding_of(raw)
    try:
        text = raw.decode(encoding)
    except UnicodeDecodeError as fault:
        name = encoding.upper()
        raise YamlError(Code.IO, f"the file is not {name}: {fault.reason} at byte {fault.start}") from None
    return Source(raw, text, encoding, sha256(raw).hexdigest())
