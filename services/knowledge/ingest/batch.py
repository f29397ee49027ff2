"""Files read, hashed, parsed and turned into groups of sections for the search."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from proto.ops.retrieve import Group, Item, Value
from services.knowledge.nodes import Known, Update
from services.knowledge.notes import files
from services.knowledge.notes.files import Place
from services.knowledge.notes.markdown import Note, Section, parse
from services.runtime.roots import OutsideRoots

BATCH_FILES = 64
BATCH_BYTES = 2 * 1024 * 1024
PATH_SEPARATOR = " > "

_log = logging.getLogger("linckia.knowledge")


@dataclass(slots=True)
class Batch:
    """Files that were read: `groups` are to be put before `updates` are recorded; `unchanged` need no put."""

    groups: dict[str, Group] = field(default_factory=dict)
    updates: dict[str, Update] = field(default_factory=dict)
    unchanged: list[Update] = field(default_factory=list)
    failed: dict[Place, str] = field(default_factory=dict)
    read: list[Place] = field(default_factory=list)
    size_bytes: int = 0

    @property
    def is_full(self) -> bool:
        return self.size_bytes >= BATCH_BYTES or len(self.read) == BATCH_FILES

    def take(self, place: Place, known: Known, roots: Sequence[str]) -> None:
        """Read and parse one file."""
        self.read.append(place)
        try:
            content = files.read(place.absolute, roots)
        except FileNotFoundError:
            return
        except OSError as error:
            self.failed[place] = f"cannot be read: {error.strerror}"
            return
        except (OutsideRoots, files.TooLarge) as error:
            self.failed[place] = f"is not indexed: {error}"
            return
        self.size_bytes += len(content.data)
        text = content.text
        hash_ = files.digest(text)
        lead = text[: len(text) - len(text.lstrip())].count("\n")
        stamp = content.stamp if content.settled else None
        if hash_ == known.hash and lead == known.lead:
            self.unchanged.append(Update(known.id, place, stamp, hash_, lead, 0.0, None))
            return
        try:
            note = parse(text, place)
        except Exception as error:  # noqa: BLE001  # one file that the parser fails on must not stop all others
            _log.exception("%s cannot be parsed", place.absolute)
            self.failed[place] = f"cannot be parsed: {type(error).__name__}: {error}"
            return
        date = note.date if note.date is not None else content.stamp.mtime_ns / 1e9
        self.updates[known.id] = Update(known.id, place, stamp, hash_, lead, date, note)
        self.groups[known.id] = group(known.id, place, date, note)


def gather(wanted: Sequence[tuple[Place, Known]], roots: Sequence[str]) -> Batch:
    """Read and parse as many of `wanted` as make one batch; blocks."""
    batch = Batch()
    for place, known in wanted:
        if batch.is_full:
            break
        batch.take(place, known, roots)
    return batch


def group(id_: str, place: Place, date: float, note: Note) -> Group:
    """A note as the search holds it."""
    items: list[Item] = []
    seen: dict[str, int] = {}
    if note.front_matter is not None:
        items.append(_item(note.front_matter, note, seen, embed=False))
    items += (_item(section, note, seen, embed=note.embed) for section in note.sections)
    if not items:
        items.append(Item(key="title", text=note.title, metadata={"first": 1, "last": 1}, embed=False))
    metadata: dict[str, Value] = {"root": place.root, "path": place.path, "tags": list(note.tags), "date": date}
    return Group(id=id_, title=note.title, items=items, metadata=metadata)


def _item(section: Section, note: Note, seen: dict[str, int], *, embed: bool) -> Item:
    heading = PATH_SEPARATOR.join(section.path or (note.title,))
    # By its content, so that a section that only moved keeps its vector.
    mark = hashlib.sha256(f"{heading}\n{section.text}".encode("utf-8", "surrogatepass")).hexdigest()[:24]
    seen[mark] = seen.get(mark, 0) + 1
    metadata: dict[str, Value] = {"first": section.first, "last": section.last}
    if len(section.parts) > 1:
        metadata["parts"] = [
            f"{part.first}:{part.last}:{PATH_SEPARATOR.join(part.path or (note.title,))}" for part in section.parts
        ]
    return Item(key=f"{mark}-{seen[mark]}", text=section.text, heading=heading, metadata=metadata, embed=embed)
