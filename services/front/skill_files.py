"""Skills: what agents should know to use Linckia well, as folders with a `SKILL.md` (https://agentskills.io).

They are part of the package, in `skills/NAME/`, and served as the MCP extension `io.modelcontextprotocol/skills`
(`services.front.protocol.skills`). Every file is a resource, with the digest and size that clients check.
"""

from __future__ import annotations

import functools
import hashlib
import mimetypes
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from proto.json_types import JsonObject
from proto.mcp import SKILLS_EXTENSION

EXTENSION: Final = SKILLS_EXTENSION
SETTINGS: Final[JsonObject] = {"directoryRead": True}

SCHEME: Final = "skill://"
ENTRY: Final = "SKILL.md"
FOLDER: Final = Path(__file__).with_name("skills")

DIRECTORY: Final = "inode/directory"

_FRONTMATTER = re.compile(r"---\n(.*?)\n---\n", re.DOTALL)
_FIELD = re.compile(r"([a-z][a-z-]*): (?![\s\"'\[{&*!|>%@`#-])([^\n]*[^\n\s:])")


class SkillFile(NamedTuple):
    """A file of a skill."""

    uri: str
    data: bytes
    mime_type: str

    @property
    def digest(self) -> str:
        return f"sha256:{hashlib.sha256(self.data).hexdigest()}"


class Skill(NamedTuple):
    """A skill with all its files, `SKILL.md` first."""

    frontmatter: Mapping[str, str]
    files: tuple[SkillFile, ...]

    @property
    def uri(self) -> str:
        return self.files[0].uri

    def entry(self) -> JsonObject:
        """Return it as clients list it."""
        resources = [{"uri": each.uri, "digest": each.digest, "size": len(each.data)} for each in self.files]
        return {"uri": self.uri, "frontmatter": dict(self.frontmatter), "resources": resources}


@functools.cache
def skills() -> Mapping[str, Skill]:
    """Return all skills by their URIs. Reads the files once."""
    found = (_skill(folder) for folder in sorted(FOLDER.iterdir()) if (folder / ENTRY).is_file())
    return {each.uri: each for each in found}


@functools.cache
def files() -> Mapping[str, SkillFile]:
    """Return the files of all skills by their URIs."""
    return {file.uri: file for skill in skills().values() for file in skill.files}


def resource_of(file: SkillFile) -> JsonObject:
    """Return a file as lists of resources show it."""
    skill = skills().get(file.uri)
    if skill is not None:
        named = {"name": skill.frontmatter["name"], "description": skill.frontmatter["description"]}
    else:
        named = {"name": file.uri.rpartition("/")[2]}
    return {"uri": file.uri, **named, "mimeType": file.mime_type, "size": len(file.data)}


def children(uri: str) -> list[JsonObject] | None:
    """Return the direct children of a directory; None if there is no such directory."""
    found: dict[str, JsonObject] = {}
    for file in files().values():
        if not file.uri.startswith(f"{uri}/"):
            continue
        name, deeper, _ = file.uri[len(uri) + 1 :].partition("/")
        child = {"uri": f"{uri}/{name}", "name": name, "mimeType": DIRECTORY} if deeper else resource_of(file)
        found.setdefault(name, child)
    return list(found.values()) or None


def frontmatter_of(text: str) -> dict[str, str]:
    """Return the fields at the beginning of a `SKILL.md`: plain one-line texts, and so without YAML's surprises.

    Raises:
        ValueError: it has none, or one of another form.
    """
    written = _FRONTMATTER.match(text)
    if written is None:
        raise ValueError("it must begin with front matter between two lines of ---")
    fields = [(_FIELD.fullmatch(line), line) for line in written[1].split("\n")]
    wrong = [line for field, line in fields if field is None or ": " in field[2] or " #" in field[2]]
    if wrong:
        raise ValueError(f"{wrong[0]!r} is not NAME: TEXT, without quotes, colons and comments")
    return {field[1]: field[2] for field, _ in fields if field is not None}


def _skill(folder: Path) -> Skill:
    found = (each for each in folder.rglob("*") if each.is_file())
    paths = sorted(found, key=lambda each: (each != folder / ENTRY, each))
    try:
        frontmatter = frontmatter_of((folder / ENTRY).read_text("utf-8"))
    except ValueError as error:
        raise ValueError(f"{folder.name}/{ENTRY}: {error}") from None
    return Skill(frontmatter, tuple(_file(each, f"{SCHEME}{each.relative_to(FOLDER).as_posix()}") for each in paths))


def _file(path: Path, uri: str) -> SkillFile:
    mime_type = "text/markdown" if path.suffix == ".md" else mimetypes.guess_type(path.name)[0]
    return SkillFile(uri, path.read_bytes(), mime_type or "application/octet-stream")
