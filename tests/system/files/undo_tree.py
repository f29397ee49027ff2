"""A tree with files of several modes, links, notes and YAML, and exact snapshots of it."""

from __future__ import annotations

import os
import random
import stat
from collections.abc import Mapping
from pathlib import Path

MODES = (0o644, 0o600, 0o755, 0o640)
TEMPORARY = ".linckia-new-"
"""Names that a kill left; the next edit in their folder removes them."""

Entry = tuple[str, int, bytes]
"""Type, mode, and the content or the link's target."""
Snapshot = dict[str, Entry]


def snapshot(root: Path) -> Snapshot:
    """Return every entry below a folder, by its path below it."""
    found: Snapshot = {}
    pending = [root]
    while pending:
        folder = pending.pop()
        for entry in os.scandir(folder):
            if entry.name.startswith(TEMPORARY):
                continue
            name = os.path.relpath(entry.path, root)
            status = entry.stat(follow_symlinks=False)
            mode = stat.S_IMODE(status.st_mode)
            if entry.is_symlink():
                found[name] = ("link", 0, os.fsencode(os.readlink(entry.path)))
            elif entry.is_dir():
                found[name] = ("folder", mode, b"")
                pending.append(Path(entry.path))
            else:
                found[name] = ("file", mode, Path(entry.path).read_bytes())
    return found


def below(tree: Snapshot, *areas: str) -> Snapshot:
    """Return the part of a snapshot in some areas."""
    return {name: entry for name, entry in tree.items() if name.partition("/")[0] in areas}


def differences(found: Mapping[str, Entry], expected: Mapping[str, Entry]) -> list[str]:
    """Describe each entry that is not as it must be."""
    return [
        f"{name}: is {_shown(found.get(name))}, must be {_shown(expected.get(name))}"
        for name in sorted(found.keys() | expected.keys())
        if found.get(name) != expected.get(name)
    ]


def _shown(entry: Entry | None) -> str:
    return "absent" if entry is None else f"{entry[0]} {entry[1]:o} {entry[2][:60]!r} ({len(entry[2])} bytes)"


def plant(root: Path, area: str, chance: random.Random) -> None:
    """Make an area of the tree."""
    top = root / area
    for folder in ("docs", "bin", "deep/deeper/deepest", "empty", "private", "notes/more", "conf"):
        (top / folder).mkdir(parents=True)
    for number in range(6):
        _file(top / f"docs/{number}.txt", text(chance), MODES[number % len(MODES)])
    _file(top / "bin/run.sh", b"#!/bin/sh\necho run\n", 0o755)
    _file(top / "bin/blob.dat", chance.randbytes(3000), 0o600)
    _file(top / "deep/deeper/deepest/old name \u00fc.txt", text(chance), 0o644)
    _file(top / "private/key.txt", text(chance), 0o600)
    for number in range(6):
        other = f"{area}-note{(number + 1) % 6}"
        content = f"# Note {number}\n\nsee [[{other}]] and [it]({other}.md)\n\n## Part\n\n{number}\n"
        _file(top / f"notes/{area}-note{number}.md", content.encode(), MODES[number % 2])
    for number in range(3):
        content = (
            f"# settings {number}\nname: n{number} # beside\nports:\n  - 80\n  - 443\nserver:\n  host: h\n  port: 1\n"
        )
        _file(top / f"conf/{number}.yaml", content.encode(), MODES[number])
    (top / "to-file").symlink_to("docs/0.txt")
    (top / "to-folder").symlink_to("docs")
    (top / "docs/dangling").symlink_to("no/such/file")
    (top / "private").chmod(0o700)
    (top / "empty").chmod(0o750)


def _file(path: Path, content: bytes, mode: int) -> None:
    path.write_bytes(content)
    path.chmod(mode)


def text(chance: random.Random) -> bytes:
    """Return a text of some lines: in UTF-8, with one of the usual line ends, or none after the last line."""
    end = chance.choice(("\n", "\n", "\r\n"))
    lines = [
        f"{chance.choice(('line', 'Zeile mit ä', '行'))} {chance.randrange(10**6)}"
        for _ in range(chance.choice((1, 3, 40)))
    ]
    return (end.join(lines) + chance.choice((end, ""))).encode()
