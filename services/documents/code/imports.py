"""Which stored documents an import or a link means: by the rules of its language, among the paths that are stored.

A path that is given from somewhere else (`a.b`, `x/y.h`) is looked for as the end of a document's path; of several,
the ones nearest to the document that imports are meant.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import apsw

from services.documents.code.grammars import FAMILIES, MARKDOWN_EXTENSIONS, language_of

MAX_MEANT = 5
_MAX_OF_NAME = 50_000
_JAVASCRIPT = (".ts", ".tsx", ".js", ".jsx", ".mjs", ".cjs", ".mts", ".cts", ".d.ts")


@dataclass(frozen=True, slots=True)
class Doc:
    """A document as the graph has it."""

    id: int
    path: str
    name: str
    object: int

    @property
    def folder(self) -> str:
        return posixpath.dirname(self.path)

    @property
    def family(self) -> str:
        """Of its language; empty where it is no code."""
        dot = self.name.rfind(".")
        language = language_of(self.name[dot:].lower()) if dot > 0 else None
        return FAMILIES[language.name] if language is not None else ""


class Paths:
    """The stored paths, for one consistent state of the store."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._named: dict[str, dict[str, list[Doc]]] = {}
        self._go: dict[str, list[Doc]] | None = None
        self._exact: dict[str, Doc | None] = {}

    def exact(self, path: str) -> Doc | None:
        """The document of a path."""
        if path not in self._exact:
            row = self._db.execute("SELECT id, path, name, object FROM document WHERE path=?", (path,)).fetchone()
            self._exact[path] = None if row is None else Doc(*row)
        return self._exact[path]

    def ending(self, suffix: str, near: Doc) -> list[Doc]:
        """Documents whose path ends so, nearest to another one."""
        name = posixpath.basename(suffix)
        if name not in self._named:
            by_parent: dict[str, list[Doc]] = {}
            for row in self._db.execute(
                "SELECT id, path, name, object FROM document WHERE name=? LIMIT ?", (name, _MAX_OF_NAME)
            ):
                doc = Doc(*row)
                by_parent.setdefault(posixpath.basename(doc.folder), []).append(doc)
            self._named[name] = by_parent
        by_parent = self._named[name]
        parent = posixpath.basename(posixpath.dirname(suffix))
        some = by_parent.get(parent, []) if parent else [doc for docs in by_parent.values() for doc in docs]
        found = [doc for doc in some if doc.path == suffix or doc.path.endswith("/" + suffix)]
        return nearest(found, near)

    def go_package(self, target: str, near: Doc) -> list[Doc]:
        """The files of a package, by the end of its path."""
        if self._go is None:
            self._go = {}
            query = "SELECT id, path, name, object FROM document WHERE extension='.go'"
            for row in self._db.execute(query):
                doc = Doc(*row)
                self._go.setdefault(posixpath.basename(doc.folder), []).append(doc)
        parts = target.split("/")
        if "." not in parts[0] and len(parts) < 2:
            return []
        found = [doc for doc in self._go.get(parts[-1], ()) if not doc.name.endswith("_test.go")]
        if not found:
            return []
        shared = {doc.folder: _shared(doc.folder.split("/")[::-1], parts[::-1]) for doc in found}
        most = max(shared.values())
        if most < 2 and "." not in parts[0]:
            return []
        best = [doc for doc in found if shared[doc.folder] == most]
        folders = {doc.folder for doc in nearest(best, near)}
        return [doc for doc in best if doc.folder in folders]


def _shared(one: Sequence[str], other: Sequence[str]) -> int:
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count


def nearest(docs: Iterable[Doc], near: Doc) -> list[Doc]:
    """Those that have the most folders in common with `near`."""
    listed = list(docs)
    if len(listed) < 2:
        return listed
    here = near.path.split("/")
    shared = {doc.id: _shared(doc.path.split("/"), here) for doc in listed}
    most = max(shared.values())
    return [doc for doc in listed if shared[doc.id] == most][:MAX_MEANT]


def meant(paths: Paths, doc: Doc, kind: str, target: str) -> list[Doc]:
    """The documents that an import or a link of `doc` means; none where it is none of those that are stored."""
    if kind == "LINKS_TO":
        return _linked(paths, doc, target)
    family = doc.family
    if family == "python":
        return _python(paths, doc, target)
    if family == "javascript":
        return _javascript(paths, doc, target)
    if family == "go":
        return paths.go_package(target, doc)
    if family == "rust":
        return _rust(paths, doc, target)
    if family == "java":
        return paths.ending(target.replace(".", "/") + ".java", doc)
    plain = target.strip("<>")
    beside = paths.exact(_join(doc, plain)) if not target.startswith("<") else None
    return [beside] if beside is not None else paths.ending(plain, doc)


def _join(doc: Doc, relative: str) -> str:
    return posixpath.normpath(posixpath.join(doc.folder, relative))


def _first(paths: Paths, candidates: Iterable[str]) -> list[Doc]:
    for candidate in candidates:
        doc = paths.exact(candidate)
        if doc is not None:
            return [doc]
    return []


def _python(paths: Paths, doc: Doc, target: str) -> list[Doc]:
    plain = target.lstrip(".")
    dots = len(target) - len(plain)
    place = plain.replace(".", "/")
    if dots:
        base = _join(doc, "/".join([".", *[".."] * (dots - 1), place]))
        return _first(paths, (f"{base}.py", f"{base}/__init__.py", f"{base}.pyi", f"{base}/__init__.pyi"))
    for ending in (f"{place}.py", f"{place}/__init__.py", f"{place}.pyi"):
        beside = paths.exact(_join(doc, ending))
        if beside is not None and beside.id != doc.id:
            return [beside]
    found: list[Doc] = []
    for ending in (f"{place}.py", f"{place}/__init__.py", f"{place}.pyi"):
        found += paths.ending(ending, doc)
    found = [one for one in found if one.id != doc.id]
    if "." not in plain:
        # Any file may have this name: only what lies at the top of a folder that the importing one is below of.
        found = [one for one in found if _is_top(one, doc)]
    return nearest(found, doc)


def _is_top(one: Doc, doc: Doc) -> bool:
    folder = one.folder if not one.name.startswith("__init__.") else posixpath.dirname(one.folder)
    return not folder or doc.path.startswith(folder.rstrip("/") + "/")


def _javascript(paths: Paths, doc: Doc, target: str) -> list[Doc]:
    if not target.startswith((".", "/")):
        return []
    base = _join(doc, target)
    bare, extension = posixpath.splitext(base)
    others = [bare + one for one in _JAVASCRIPT] if extension in _JAVASCRIPT else []
    return _first(
        paths,
        [base, *(base + one for one in _JAVASCRIPT), *others, *(f"{base}/index{one}" for one in _JAVASCRIPT)],
    )


def _rust(paths: Paths, doc: Doc, target: str) -> list[Doc]:
    parts = target.split("::")
    if len(parts) == 1:
        folders = (doc.folder, posixpath.splitext(doc.path)[0])
        places = [posixpath.join(folder, parts[0]) for folder in folders]
        return _first(paths, [f"{place}{ending}" for place in places for ending in (".rs", "/mod.rs")])
    inner = [part for part in parts if part not in ("crate", "self", "super")]
    if not inner or (len(inner) == len(parts) and parts[0] in ("std", "core", "alloc")):
        return []
    for some in (inner, inner[:-1]):
        if some:
            place = "/".join(some)
            found = paths.ending(f"{place}.rs", doc) or paths.ending(f"{place}/mod.rs", doc)
            if found:
                return found
    return []


def _linked(paths: Paths, doc: Doc, target: str) -> list[Doc]:
    plain = target.rstrip("/")
    if plain.startswith("/"):
        found = _first(paths, (plain,)) or paths.ending(plain.lstrip("/"), doc)
    else:
        base = _join(doc, plain)
        found = _first(paths, (base, *(base + extension for extension in MARKDOWN_EXTENSIONS), f"{base}/README.md"))
        if not found and not plain.startswith("."):
            for name in (plain, *(plain + extension for extension in MARKDOWN_EXTENSIONS)):
                found = paths.ending(name, doc)
                if found:
                    break
    return [one for one in found if one.id != doc.id]
