"""A document that is a zip file: its members, of which no more is unfolded than a document may have."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from typing import Final

from services.decode.results import NotDecoded

MAX_UNFOLDED_BYTES: Final = 192 * 1024**2
"""Of all members together."""
_PIECE_BYTES: Final = 1024 * 1024
_TOO_LARGE: Final = f"it unfolds to more than {MAX_UNFOLDED_BYTES} bytes"


class Archive:
    """The members of a zip file in memory.  Raises NotDecoded where it is none, or is locked."""

    def __init__(self, data: bytes) -> None:
        try:
            self._zip = zipfile.ZipFile(io.BytesIO(data))
        except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError) as error:
            # The third is what `zipfile` raises at a version of the format that it does not know.
            raise NotDecoded(f"it is damaged: {error}") from None
        self._members = {info.filename: info for info in self._zip.infolist()}
        self._left = MAX_UNFOLDED_BYTES

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def check_size(self) -> None:
        """Raises NotDecoded where the members say that they are too large together."""
        if sum(info.file_size for info in self._members.values()) > MAX_UNFOLDED_BYTES:
            raise NotDecoded(_TOO_LARGE)

    def pieces(self, name: str) -> Iterator[bytes]:
        """A member, nothing of one that is not there.  Raises NotDecoded; and what zipfile and zlib raise."""
        info = self._members.get(name)
        if info is None:
            return
        if info.flag_bits & 1:
            raise NotDecoded("it is locked by a password")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise NotDecoded(f"it is compressed in a way that is not read ({info.compress_type})")
        with self._zip.open(info) as member:
            while piece := member.read(_PIECE_BYTES):
                self._left -= len(piece)
                if self._left < 0:
                    raise NotDecoded(_TOO_LARGE)
                yield piece

    def read(self, name: str) -> bytes:
        """A member whole.  Raises as `pieces`."""
        return b"".join(self.pieces(name))
