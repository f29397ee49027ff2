"""Parsed files by their content, so that reading a file again costs no parse. Bounded by an estimate of memory."""

from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from typing import Final

from services.yaml.source import Source
from services.yaml.tree import Tree

DEFAULT_MAX_BYTES: Final = 256 * 1024 * 1024
_BYTES_PER_EVENT: Final = 320  # measured: an event, its value, its three offsets and its share of the tables
_BYTES_PER_CHARACTER: Final = 6  # the text and the raw bytes


@dataclass(frozen=True, slots=True)
class Parsed:
    """A file's content with its tree."""

    source: Source
    tree: Tree

    @property
    def cost(self) -> int:
        return len(self.tree.stream.events) * _BYTES_PER_EVENT + len(self.source.text) * _BYTES_PER_CHARACTER


class ParseCache:
    """Least recently used trees, at most `max_bytes` of them; safe to use from several threads.

    A file is looked up by its bytes: first against what the same path held last (one comparison of memory), then by
    their SHA-256.
    """

    def __init__(self, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self._lock = Lock()
        self._by_digest: OrderedDict[str, Parsed] = OrderedDict()
        self._digest_at: dict[str, str] = {}
        self._used = 0

    def at_path(self, path: str, raw: bytes) -> Parsed | None:
        """What `path` held last, if these are its bytes."""
        with self._lock:
            digest = self._digest_at.get(path)
            found = self._by_digest.get(digest) if digest is not None else None
            if found is not None and digest is not None:
                self._by_digest.move_to_end(digest)
        return found if found is not None and found.source.raw == raw else None

    def by_digest(self, path: str, digest: str) -> Parsed | None:
        """The parsed content of that digest, which from now on is what `path` holds."""
        with self._lock:
            found = self._by_digest.get(digest)
            if found is not None:
                self._by_digest.move_to_end(digest)
                self._digest_at[path] = digest
            return found

    def put(self, path: str, parsed: Parsed) -> None:
        """Keep a parsed file; one larger than the whole bound is not kept."""
        if parsed.cost > self.max_bytes:
            return
        digest = parsed.source.digest
        with self._lock:
            old = self._by_digest.pop(digest, None)
            if old is not None:
                self._used -= old.cost
            self._by_digest[digest] = parsed
            self._digest_at[path] = digest
            self._used += parsed.cost
            while self._used > self.max_bytes:
                gone, dropped = self._by_digest.popitem(last=False)
                self._used -= dropped.cost
                for at in [at for at, kept in self._digest_at.items() if kept == gone]:
                    del self._digest_at[at]

    @property
    def used_bytes(self) -> int:
        return self._used
