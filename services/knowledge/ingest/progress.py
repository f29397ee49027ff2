"""How far the index is in step with the folders."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from services.knowledge.notes.files import Place, Stamp
from services.knowledge.store.nodes import Known

SCAN_INTERVAL_S = 1.0
SCAN_SHARE = 0.05
"""Of the time, for walks of everything while no watcher reports changes."""

PROMPT_S = 3.0
"""The time within which a change is promised to show."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A file that could not be indexed; tried again once it changes, or after `retry_at` on trio's clock."""

    reason: str
    retry_at: float
    stamp: Stamp | None


@dataclass(slots=True)
class Progress:
    """How far the index is in step; the material of `degraded` and of the status."""

    scanned: bool = False
    scanned_at: float | None = None
    scan_began_at: float = 0.0
    scan_ms: float = 0.0
    interval_s: float = SCAN_INTERVAL_S
    unwatched: str | None = "the watcher of folders has not answered yet"
    waiting: str | None = None
    walk_problems: dict[str, str] = field(default_factory=dict)

    def degraded(
        self,
        *,
        rebuilt: str,
        notes: int,
        pending: Collection[Place],
        failed: Collection[Place],
        unsettled: bool,
        roots: Sequence[str],
    ) -> list[str]:
        """How an answer from the index may fall short of the files at this moment.

        Args:
            rebuilt: why the database was begun again, where it is not complete yet.
            notes: that there are.
            unsettled: whether the search may lack notes or hold some that are gone.
        """
        said = ["index: the database of notes was damaged, and is being rebuilt"] if rebuilt else []
        if not self.scanned:
            said.append("index: the first scan of the folders is under way")
        if pending:
            said.append(f"index: {len(pending)} of {notes} notes are still to be indexed")
        if failed:
            said.append(f"index: {len(failed)} of {notes} notes could not be indexed, see knowledge_status")
        if self.unwatched is not None and self.scanned and self.interval_s > PROMPT_S:
            said.append(f"index: a change shows after up to {self.interval_s:.0f} s, for {self.unwatched}")
        if self.waiting and (pending or unsettled):
            said.append(f"index: waits, {self.waiting}")
        said += (f"index: {root}: {self.walk_problems[root]}" for root in roots if root in self.walk_problems)
        return said

    def problems(self, known: Mapping[Place, Known], failed: Mapping[Place, Failed]) -> dict[str, str]:
        """Files and folders that are not, or not wholly, indexed, and why."""
        found = dict(self.walk_problems)
        found.update({place.absolute: each.problem for place, each in known.items() if each.problem})
        found.update({place.absolute: each.reason for place, each in failed.items()})
        return found
