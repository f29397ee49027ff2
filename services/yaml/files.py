"""Files on disk: named by their real path, which must lie under a root, and read whole."""

import os
import stat
from dataclasses import dataclass
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
