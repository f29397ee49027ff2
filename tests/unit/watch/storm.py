"""Everything at once: a random, repeatable storm of changes, as fast as one process can make them."""

from __future__ import annotations

import os
import random
import shutil
import sys
from pathlib import Path


class Storm:
    """Makes, renames, edits and deletes files and folders below `root`; `outside` is where folders are moved to."""

    def __init__(self, root: Path, outside: Path, seed: int) -> None:
        self._root = root
        self._outside = outside
        self._chance = random.Random(seed)
        self._folders = [str(root)]
        self._files: list[str] = []
        self._away: list[str] = []
        self._made = 0

    def run(self, steps: int) -> None:
        """So many changes."""
        for _ in range(steps):
            self.step()

    def step(self) -> None:
        """One change."""
        what = self._chance.random()
        try:
            if what < 0.50 or not self._files:
                self._make_file()
            elif what < 0.62:
                self._edit()
            elif what < 0.74:
                self._rename_file()
            elif what < 0.84:
                self._delete_file()
            elif what < 0.94:
                self._nest()
            elif what < 0.97:
                self._rename_folder()
            elif what < 0.985:
                self._delete_folder()
            else:
                self._move_out_or_in()
        except (FileNotFoundError, NotADirectoryError, FileExistsError):
            # It went with a folder before.
            return

    def _name(self, folder: str) -> str:
        self._made += 1
        return f"{folder}/n{self._made}"

    def _any(self, among: list[str]) -> str:
        return among[self._chance.randrange(len(among))]

    def _make_file(self) -> None:
        path = self._name(self._any(self._folders)) + ".txt"
        with open(path, "wb") as file:
            file.write(b"x" * self._chance.randrange(64))
        self._files.append(path)

    def _edit(self) -> None:
        with open(self._any(self._files), "r+b") as file:
            file.write(b"y" * self._chance.randrange(64))

    def _rename_file(self) -> None:
        at = self._chance.randrange(len(self._files))
        # Now and then onto another file.
        new = self._any(self._files) if self._chance.random() < 0.2 else self._name(self._any(self._folders))
        os.rename(self._files[at], new)
        self._files[at] = new

    def _delete_file(self) -> None:
        at = self._chance.randrange(len(self._files))
        path = self._files[at]
        self._files[at] = self._files[-1]
        self._files.pop()
        os.unlink(path)

    def _nest(self) -> None:
        folder = self._any(self._folders)
        for _ in range(self._chance.randrange(1, 5)):
            if folder.count("/") > 60:
                break
            folder = self._name(folder)
            os.mkdir(folder)
            self._folders.append(folder)
            with open(folder + "/first", "wb"):
                self._files.append(folder + "/first")

    def _rename_folder(self) -> None:
        if len(self._folders) > 1:
            self._move(self._any(self._folders[1:]), self._name(self._any(self._folders)))

    def _move(self, old: str, new: str) -> None:
        if (new + "/").startswith(old + "/"):
            return
        os.rename(old, new)
        for paths in (self._folders, self._files):
            paths[:] = [new + path[len(old) :] if path == old or path.startswith(old + "/") else path for path in paths]

    def _forget(self, folder: str) -> None:
        for paths in (self._folders, self._files):
            paths[:] = [path for path in paths if path != folder and not path.startswith(folder + "/")]

    def _delete_folder(self) -> None:
        if len(self._folders) > 1:
            folder = self._any(self._folders[1:])
            # Now and then another of the same name follows at once.
            again = self._chance.random() < 0.3
            shutil.rmtree(folder)
            self._forget(folder)
            if again:
                os.mkdir(folder)
                self._folders.append(folder)

    def _move_out_or_in(self) -> None:
        if self._away and self._chance.random() < 0.5:
            new = self._name(self._any(self._folders))
            os.rename(self._away.pop(), new)
            self._folders.append(new)
        elif len(self._folders) > 1:
            folder = self._any(self._folders[1:])
            away = self._name(str(self._outside))
            os.rename(folder, away)
            self._forget(folder)
            self._away.append(away)


if __name__ == "__main__":
    Storm(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])).run(int(sys.argv[4]))
