"""What an `add` has done so far, and its answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from proto.ops.documents.change import AddResult
from services.documents.store.rows import ADDED, UNCHANGED, UPDATED

MAX_FAILED = 100


@dataclass(slots=True)
class Progress:
    """Counts of documents by what has become of them; bytes; the contents that were not there before."""

    added: int = 0
    updated: int = 0
    unchanged: int = 0
    size: int = 0
    stored: int = 0
    objects: list[int] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    failed_count: int = 0

    def count(self, outcome: str, size: int) -> None:
        self.added += outcome is ADDED
        self.updated += outcome is UPDATED
        self.unchanged += outcome is UNCHANGED
        self.size += size

    def fail(self, reasons: Sequence[str]) -> None:
        self.failed_count += len(reasons)
        self.failed += reasons[: MAX_FAILED - len(self.failed)]

    def answer(self, path: str, *, hash_: str | None, name: str, skipped: int = 0,
               snapshot: str | None = None) -> AddResult:  # fmt: skip
        return AddResult(
            hash=hash_, path=path, name=name, size=self.size, is_new=bool(self.objects), documents_added=self.added,
            documents_updated=self.updated, documents_unchanged=self.unchanged,
            files=self.added + self.updated + self.unchanged, bytes_stored=self.stored, failed=self.failed,
            failed_count=self.failed_count, skipped=skipped, snapshot_id=snapshot, text_waiting=0,
        )  # fmt: skip
