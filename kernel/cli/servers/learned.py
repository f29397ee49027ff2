"""What a mounted server needs, from what it tried to do while it was observed: `roots` and `network` of its table.

Some places are never proposed: the home directory as a whole, Linckia's own files, keys, browsers' profiles, and what
other programs run or obey. They are shown, with the reason, and only the user can add them.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from proto.json_types import Layer

SECRETS: Final = (
    ".ssh", ".aws", ".gnupg", ".kube", ".docker", ".azure", ".netrc", ".pgpass", ".password-store", ".git-credentials",
    ".npmrc", ".pypirc", ".vault-token", ".config/gcloud", ".config/gh", ".config/op", ".local/share/keyrings",
    ".mozilla", ".thunderbird", ".config/google-chrome", ".config/chromium", ".config/BraveSoftware",
    ".config/microsoft-edge", ".config/vivaldi", ".config/opera", ".var/app", "snap", "Library/Keychains",
    "Library/Application Support/Google/Chrome", "Library/Application Support/Firefox", "Library/Cookies",
)  # fmt: skip
"""Keys, passwords and browsers' profiles, in the home directory."""

OBEYED: Final = (
    ".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".profile", ".zshrc", ".zshenv", ".zprofile",
    ".config/fish", ".config/autostart", ".config/systemd", ".config/environment.d", ".local/bin", "bin",
    ".local/share/applications", ".local/share/systemd", ".gitconfig", ".config/git", ".vimrc", ".config/nvim",
    ".emacs.d", ".claude", ".claude.json", ".cursor", ".vscode", ".config/Code", ".config/Claude", ".codex", ".gemini",
    ".config/zed", "Library/LaunchAgents",
)  # fmt: skip
"""What other programs run or obey: shells, sessions, git, editors and MCP clients."""

_APPLICATIONS: Final = (".cache", ".config", ".local/share", ".local/state", "")
"""Folders of the home directory in which each application has a folder of its own; in the home directory itself, one
with a dot."""

_SYSTEM: Final = ("bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "libx32", "opt", "proc", "root", "run", "sbin",
                  "snap", "sys", "usr", "var")  # fmt: skip
_SHARED: Final = ("/tmp", "/var/tmp", "/home", "/mnt", "/media", "/srv")


class Attempt(msgspec.Struct, frozen=True):
    """Something that the server tried to do; the kinds are those of `services.mounts.observer`."""

    kind: str
    path: str


class Needs(msgspec.Struct, frozen=True, kw_only=True):
    """What a server needs beyond its settings.

    Attributes:
        roots: folders to add.
        new: those of them that do not exist yet.
        named: folders that its command or variables name, to which it may not write and did not try to.
        by_hand: other places that it tried to write to, and why they are not proposed.
        secrets: keys and the like that it read or tried to read.
        connections: what it connected to, or listened at.
    """

    roots: list[str]
    new: list[str]
    named: list[str]
    by_hand: dict[str, str]
    secrets: list[str]
    connections: list[str]


def needs_of(attempts: Iterable[Attempt], table: Layer, *, home: Path, closed: Collection[str]) -> Needs:
    """Return what the attempts of a server need that its table does not give it.

    Args:
        closed: real paths of Linckia's own files and of what is denied.
    """
    home = Path(os.path.realpath(home))
    given = [os.path.realpath(each) for each in table.get("roots", [])]
    named = list(dict.fromkeys(_named(table, home, closed)))
    found: set[str] = set()
    by_hand: dict[str, str] = {}
    secrets: set[str] = set()
    connections: dict[str, None] = {}
    for each in attempts:
        if each.kind in ("connect", "listen"):
            connections[each.path if each.kind == "connect" else f"{each.path} (listens)"] = None
        elif each.kind == "read":
            secrets |= {str(home / name) for name in SECRETS if _is_in(each.path, str(home / name))}
        elif each.kind in ("write", "folder") and not any(_is_in(each.path, root) for root in given):
            folder = _folder(each, named, home)
            if why := problem(each.path, home=home, closed=closed):
                by_hand[each.path] = why
            elif folder and (why := problem(folder, home=home, closed=closed)):
                by_hand[folder] = why
            elif not folder:
                by_hand[each.path] = "only folders can be roots, and this one has other things"
            else:
                found.add(folder)
    roots = sorted(each for each in found if not any(_is_in(each, other) for other in found - {each}))
    return Needs(
        roots=roots,
        new=[each for each in roots if not os.path.isdir(each)],
        named=[each for each in named if not any(_is_in(each, root) for root in (*given, *roots))],
        by_hand=dict(sorted(by_hand.items())),
        secrets=sorted(secrets),
        connections=list(connections),
    )


def problem(path: str, *, home: Path, closed: Collection[str]) -> str:
    """Return why a place (a real path) is never proposed as a root; empty if it may be."""
    top, own = Path(path).parts[1:2], str(home)
    if _is_in(own, path):
        return "it is or contains your home directory" if path != "/" else "it is everything"
    if any(_overlap(path, each) for each in closed):
        return "it holds Linckia's own files, or files that `deny` in the settings names"
    if any(_overlap(path, str(home / name)) for name in SECRETS):
        return "keys, passwords or a browser's profile are there"
    if any(_overlap(path, str(home / name)) for name in OBEYED):
        return "other programs run or read their configuration from there"
    if path in _SHARED:
        return "all programs share it"
    if not _is_in(path, own) and top and top[0] in _SYSTEM and not path.startswith("/var/tmp/"):
        return "it belongs to the system"
    if any(_is_in(str(home / name), path) for name in _APPLICATIONS if name):
        return "the settings or data of all your programs are there"
    if os.path.lexists(path) and not os.access(path, os.W_OK):
        return "you cannot write there either"
    return ""


def _named(table: Layer, home: Path, closed: Collection[str]) -> Iterator[str]:
    """Yield the existing folders that the server's own command, variables and working directory name."""
    words = [*table.get("args", []), *table.get("env", {}).values(), table.get("cwd", "")]
    for word in words:
        path = word.partition("=")[2] if word.startswith("-") else word
        if os.path.isabs(path) and os.path.isdir(path):
            real = os.path.realpath(path)
            if not problem(real, home=home, closed=closed):
                yield real


def _folder(attempt: Attempt, named: Collection[str], home: Path) -> str:
    """Return the folder to add for a write; empty if it is a file in a folder with other things."""
    path = Path(attempt.path)
    if above := [each for each in named if _is_in(attempt.path, each)]:
        return min(above, key=len)
    for name in _APPLICATIONS:
        place = home / name
        if path != place and path.is_relative_to(place):
            own = path.relative_to(place).parts
            if not name and len(own) > 1 and not own[0].startswith("."):
                break
            if len(own) > 1 or attempt.kind == "folder":
                return str(place / own[0])
            return ""
    return str(_existing(path if attempt.kind == "folder" else path.parent))


def _existing(path: Path) -> Path:
    return next(each for each in (path, *path.parents) if each.is_dir())


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _overlap(one: str, other: str) -> bool:
    return _is_in(one, other) or _is_in(other, one)
