"""Random changes of all kinds in one area of a tree, drawn from what is there at the moment."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.system.files.undo_tree import TEMPORARY, text

Call = tuple[str, dict[str, Any]]

MOST_FILES = 90
"""From so many on, more is deleted than made."""


class Area:
    """Draws calls that change what is below one folder."""

    def __init__(self, root: Path, name: str, chance: random.Random) -> None:
        self.name = name
        self._top = root / name
        self._chance = chance
        self._number = 0
        self._trashed: list[tuple[int, str]] = []
        self._draws: list[tuple[int, Callable[[], Call | None]]] = [
            (9, self._create), (8, self._overwrite), (8, self._edit), (4, self._rename), (7, self._move),
            (3, self._move_folder), (4, self._copy), (3, self._folder), (6, self._delete), (2, self._delete_folder),
            (2, self._delete_link), (5, self._restore), (3, self._write_note), (5, self._edit_note), (3, self._tag),
            (4, self._rename_note), (5, self._set), (3, self._remove), (3, self._append), (3, self._merge),
        ]  # fmt: skip

    def draw(self) -> Call:
        """Return an operation and its parameters."""
        self._look()
        weights = [weight for weight, _ in self._draws]
        while True:
            ((_, drawn),) = self._chance.choices(self._draws, weights)
            if len(self._files) > MOST_FILES and drawn in (self._create, self._copy, self._restore):
                continue
            call = drawn()
            if call is not None:
                return call

    def learn(self, result: dict[str, Any]) -> list[int]:
        """Remember what an answer says is in the trash now; return the ids."""
        ids = []
        for part in (result, *(result.get("results") or ())):
            if (id_ := part.get("trashId", part.get("trash_id"))) is not None and part.get("path"):
                self._trashed.append((id_, part["path"]))
                ids.append(id_)
        return ids

    def _look(self) -> None:
        self._files: list[str] = []
        self._folders: list[str] = []
        self._links: list[str] = []
        for folder, folders, files in os.walk(self._top):
            paths = [os.path.join(folder, name) for name in sorted(files) if not name.startswith(TEMPORARY)]
            inner = [os.path.join(folder, name) for name in sorted(folders)]
            self._links += [path for path in paths + inner if os.path.islink(path)]
            self._files += [path for path in paths if not os.path.islink(path)]
            self._folders += [path for path in inner if not os.path.islink(path)]

    def _of(self, *ends: str) -> str | None:
        found = [path for path in self._files if path.endswith(ends)]
        return self._chance.choice(found) if found else None

    def _place(self, end: str) -> str:
        """Return a new path, with new folders above it now and then."""
        self._number += 1
        folder = self._chance.choice([str(self._top), *self._folders])
        if self._chance.random() < 0.25:
            folder += f"/new{self._number}" + self._chance.choice(("", "/inner"))
        name = self._chance.choice(("f", "file \u00e9 ", ".hidden"))
        return f"{folder}/{name}{self._number}{end}"

    def _text(self) -> str:
        return "" if self._chance.random() < 0.05 else text(self._chance).decode()

    def _create(self) -> Call:
        end = self._chance.choice((".txt", ".txt", ".py", ".json", ".md"))
        return "files_write", {"path": self._place(end), "content": self._text()}

    def _overwrite(self) -> Call | None:
        # Through a link, too.
        found = [path for path in self._files + self._links if path.endswith((".txt", ".sh", ".py", "to-file"))]
        found = [path for path in found if os.path.isfile(path)]
        if not found:
            return None
        return "files_write", {"path": self._chance.choice(found), "content": self._text(), "overwrite": True}

    def _edit(self) -> Call | None:
        path = self._of(".txt", ".sh", ".md", ".yaml")
        if path is None or not os.path.getsize(path):
            return None
        if path.endswith(".yaml"):
            return "files_edit", {"path": path, "edits": [{"lines": "1", "new": f"# edited {self._new()}"}]}
        return "files_edit", {"path": path, "edits": [{"lines": "1", "new": f"# edited {self._new()}\nand more"}]}

    def _new(self) -> str:
        self._number += 1
        return str(self._number)

    def _rename(self) -> Call | None:
        if not self._files:
            return None
        chosen = self._chance.sample(self._files, min(len(self._files), self._chance.choice((1, 1, 3))))
        renames = [
            {"from": path, "to": f"{os.path.dirname(path)}/renamed{self._new()}{os.path.splitext(path)[1]}"}
            for path in chosen
        ]
        return "files_rename", {"renames": renames}

    def _move(self) -> Call | None:
        every = self._files + self._links
        if not every:
            return None
        chosen = self._chance.sample(every, min(len(every), self._chance.choice((1, 1, 1, 4))))
        moves = [{"from": path, "to": self._place(os.path.splitext(path)[1])} for path in chosen]
        return "files_move", {"moves": moves, "makeDirectories": True}

    def _move_folder(self) -> Call | None:
        if not self._folders:
            return None
        chosen = self._chance.choice(self._folders)
        place = self._place("dir")
        if place.startswith(f"{chosen}/"):
            return None
        return "files_move", {"moves": [{"from": chosen, "to": place}], "makeDirectories": True}

    def _copy(self) -> Call | None:
        every = self._files + self._links + (self._folders if self._chance.random() < 0.1 else [])
        if not every:
            return None
        chosen = self._chance.choice(every)
        place = self._place("copy" + os.path.splitext(chosen)[1])
        if place.startswith(f"{chosen}/") or chosen.endswith(".md"):
            return None
        return "files_copy", {"copies": [{"from": chosen, "to": place}], "makeDirectories": True}

    def _folder(self) -> Call:
        paths = [self._place("made") + self._chance.choice(("", "/x/y")) for _ in range(self._chance.choice((1, 2)))]
        return "folders_create", {"paths": paths}

    def _delete(self) -> Call | None:
        if len(self._files) < 20:
            return None
        chosen = self._chance.sample(self._files, self._chance.choice((1, 1, 3)))
        return "files_delete", {"paths": chosen}

    def _delete_folder(self) -> Call | None:
        if not self._folders:
            return None
        if self._chance.random() < 0.4:
            empty = [path for path in self._folders if not os.listdir(path)]
            return ("files_delete", {"paths": [self._chance.choice(empty)]}) if empty else None
        chosen = self._chance.choice(self._folders)
        if sum(path.startswith(f"{chosen}/") for path in self._files) > len(self._files) // 3:
            return None
        return "files_delete", {"paths": [chosen], "force": True}

    def _delete_link(self) -> Call | None:
        return ("files_delete", {"paths": [self._chance.choice(self._links)]}) if self._links else None

    def _restore(self) -> Call | None:
        if not self._trashed:
            return None
        id_, path = self._trashed.pop(self._chance.randrange(len(self._trashed)))
        item: dict[str, Any] = {"trashId": id_}
        folder = os.path.dirname(path)
        if os.path.lexists(path) or not os.path.isdir(folder) or self._chance.random() < 0.3:
            item["to"] = (
                f"{self._chance.choice([str(self._top), *self._folders])}/back{self._new()}{os.path.splitext(path)[1]}"
            )
        return "trash_restore", {"items": [item]}

    # Notes

    def _write_note(self) -> Call:
        old = self._of(".md")
        names = [os.path.basename(path)[:-3] for path in self._files if path.endswith(".md")]
        content = f"# Written {self._new()}\n" + "".join(f"\n[[{self._chance.choice(names)}]]\n" for _ in names[:2])
        if old is not None and self._chance.random() < 0.4:
            return "notes_write", {"path": old, "content": content, "overwrite": True}
        place = f"{self._chance.choice([str(self._top), *self._folders])}/{self.name}-written{self._new()}.md"
        return "notes_write", {"path": place, "content": content, "front_matter": {"tags": ["a"]}}

    def _edit_note(self) -> Call | None:
        path = self._of(".md")
        if path is None:
            return None
        kind = self._chance.choice(({"append": f"more {self._new()}\n"}, {"front_matter": {"status": self._new()}}))
        return "notes_edit", {"path": path, **kind}

    def _tag(self) -> Call | None:
        path = self._of(".md")
        return None if path is None else ("notes_tag", {"file_path": path, "tags": [f"t{self._new()}"]})

    def _rename_note(self) -> Call | None:
        path = self._of(".md")
        if path is None:
            return None
        name = f"{self.name}-called{self._new()}.md"
        if self._chance.random() < 0.3:
            name = os.path.relpath(
                f"{self._top}/notes{self._chance.choice(('', '/more', f'/n{self._new()}'))}/{name}", self._top.parent
            )
        return "notes_rename", {"path": path, "to": name}

    # YAML

    def _set(self) -> Call | None:
        path = self._of(".yaml")
        key = self._chance.choice(("name", "server.port", "server.added.deep", f"k{self._new()}"))
        return None if path is None else ("yaml_set", {"file": path, "path": key, "value": self._new()})

    def _remove(self) -> Call | None:
        path = self._of(".yaml")
        key = self._chance.choice(("server.added", "ports[1]", "server.host"))
        return None if path is None else ("yaml_delete", {"file": path, "path": key})

    def _append(self) -> Call | None:
        path = self._of(".yaml")
        return None if path is None else ("yaml_append", {"file": path, "path": "ports", "value": self._new()})

    def _merge(self) -> Call | None:
        path = self._of(".yaml")
        values = {"server": {"extra": self._new(), "list": [1, 2]}, f"m{self._new()}": {"a": None}}
        return None if path is None else ("yaml_merge", {"file": path, "values": values})
