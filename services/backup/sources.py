"""Where a restore reads: one place, or several of which one has what another lacks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from proto.backup import Access, BackupFailed, Manifest, Program
from services.backup.places import Damaged, Lost, is_remote
from services.backup.target import Target, each_of, opened


class Sources:
    """Open places; a context manager. Raises BackupFailed or OSError if none can be opened."""

    def __init__(self, places: Sequence[str], data_dir: Path, access: Access) -> None:
        self.remarks: list[str] = []
        """What was wrong with places, and is not with what was restored."""
        self._places = places
        self._data_dir = data_dir
        self._access = access
        self._targets: list[Target] = []
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Sources:
        with contextlib.ExitStack() as stack:
            for place in self._places:
                try:
                    if not is_remote(place) and not Path(place).exists():
                        raise BackupFailed(f"backup {place} does not exist")
                    target = opened(place, self._data_dir, self._access)
                    stack.enter_context(target)
                    self._targets.append(target)
                except (BackupFailed, OSError) as error:
                    if len(self._places) == 1:
                        raise
                    self.remarks.append(str(error))
            if not self._targets:
                raise BackupFailed("; ".join(self.remarks))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def chosen(self, at: str | None, program: Program) -> Iterator[Chosen]:
        """Yield the snapshots to try, best first. Raises BackupFailed if there are none, or one is too new."""
        there = [(name, target) for target in self._targets for name in target.names()]
        names = sorted({name for name, _ in there if at is None or name.startswith(at)}, reverse=True)
        shown = ", ".join(str(target.path) for target in self._targets)
        if not names:
            raise BackupFailed(f"no snapshot {at or ''} in {shown}; see linckia backup --list {shown}")
        if at is not None and len(names) > 1 and at not in names:
            raise BackupFailed(f"{at} matches {len(names)} snapshots; use a longer prefix: {', '.join(sorted(names))}")
        for name in [at] if at is not None and at in names else names:
            # Two places may have different snapshots of the same second.
            found = [
                (manifest, target)
                for target in (target for each, target in there if each == name)
                if (manifest := self._manifest(target, name)) is not None
            ]
            for manifest, target in sorted(found, key=lambda each: each[0].at, reverse=True):
                if manifest.data_format > program.data_format:
                    raise BackupFailed(
                        f"the snapshot {manifest.id} was made by Linckia {manifest.version} (data format "
                        f"{manifest.data_format}), but this is {program.version}, which reads up to "
                        f"{program.data_format}: use that version or a newer one"
                    )
                yield Chosen(manifest, target, [each for each in self._targets if each is not target], self.remarks)

    def _manifest(self, target: Target, name: str) -> Manifest | None:
        try:
            return target.manifest(name)
        except (Damaged, Lost) as error:
            self.pass_over(error)
            return None

    def pass_over(self, error: Damaged | Lost) -> None:
        """Go on with the next snapshot, if there are several places; an older one of a single place must be named."""
        if len(self._places) == 1:
            raise error
        why = f"{error.filename}: {error.strerror}" if isinstance(error, Lost) else str(error)
        self.remarks.append(f"{why}; this snapshot was passed over")


class Chosen:
    """A snapshot, the place that it is in, and others that may have its chunks."""

    def __init__(self, manifest: Manifest, target: Target, others: Sequence[Target], remarks: list[str]) -> None:
        self.manifest = manifest
        self._target = target
        self._others = others
        self._remarks = remarks

    def blocks(self) -> Iterator[bytes]:
        """Yield all chunks of all files. Raises Damaged or OSError."""
        names = (name for file in self.manifest.files for name in file.chunks)
        for name, found in each_of(self._target, names):
            yield self._elsewhere(name, found) if isinstance(found, Damaged) else found

    def _elsewhere(self, name: str, damage: Damaged) -> bytes:
        for other in self._others:
            with contextlib.suppress(Damaged, Lost):
                block = other.get(name)
                self._remarks.append(f"{damage}; it was taken from {other.path}")
                return block
        raise damage
