"""Resolve imports and links to stored documents by the rules of each language.

A path relative to an unknown base (`a.b`, `x/y.h`) matches the end of a document's path. If several match, those
nearest to the importing document are used.
"""

from __future__ import annotations

import functools
import itertools
import posixpath
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import apsw

from proto.ops.decode import LANGUAGES, MARKDOWN_EXTENSIONS, SEPARATORS
from services.documents.store.kinds import extension_of

MAX_MEANT = 5
_MAX_OF_NAME = 50_000
_JAVASCRIPT = (".ts", ".tsx", ".js", ".jsx", ".mjs", ".cjs", ".mts", ".cts", ".d.ts")


@dataclass(frozen=True, slots=True)
class Doc:
    id: int
    path: str
    name: str
    object: int

    @property
    def folder(self) -> str:
        return posixpath.dirname(self.path)

    @property
    def family(self) -> str:
        """The family of its language; empty if it is not code."""
        language = LANGUAGES.get(extension_of(self.name))
        return "" if language is None else language[1]


class Paths:
    """The stored paths, on one snapshot of the store."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self.exact = functools.cache(self._exact)
        self._by_folder = functools.cache(self._in_folders)

    def _exact(self, path: str) -> Doc | None:
        return next(self.where("path=?", path), None)

    def ending(self, suffix: str, near: Doc) -> list[Doc]:
        """Return the documents whose path ends with `suffix` and that are nearest to `near`."""
        above, _, name = suffix.rpartition("/")
        named, parent = self._by_folder("name=? LIMIT ?", name, _MAX_OF_NAME), posixpath.basename(above)
        some = named.get(parent, []) if parent else [doc for docs in named.values() for doc in docs]
        return nearest([doc for doc in some if f"/{doc.path}".endswith(f"/{suffix}")], near)

    def go_package(self, target: str, near: Doc) -> list[Doc]:
        """Return the files of a Go package, matched by the end of its path."""
        parts = target.split("/")
        if "." not in parts[0] and len(parts) < 2:
            return []
        of_go = self._by_folder("extension='.go'")
        found = [doc for doc in of_go.get(parts[-1], ()) if not doc.name.endswith("_test.go")]
        shared = {doc.folder: _shared(doc.folder.split("/")[::-1], parts[::-1]) for doc in found}
        most = max(shared.values(), default=0)
        if most < 2 and "." not in parts[0]:
            return []
        best = [doc for doc in found if shared[doc.folder] == most]
        folders = {doc.folder for doc in nearest(best, near)}
        return [doc for doc in best if doc.folder in folders]

    def where(self, condition: str, *values: apsw.SQLiteValue) -> Iterator[Doc]:
        rows = self._db.execute(f"SELECT id, path, name, object FROM document WHERE {condition}", values)
        return (Doc(*row) for row in rows)

    def _in_folders(self, condition: str, *values: apsw.SQLiteValue) -> dict[str, list[Doc]]:
        """Group documents by the name of their folder."""
        found: dict[str, list[Doc]] = {}
        for doc in self.where(condition, *values):
            found.setdefault(posixpath.basename(doc.folder), []).append(doc)
        return found


def _shared(one: Sequence[str], other: Sequence[str]) -> int:
    """Return the length of the common prefix."""
    return len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))))


def nearest(docs: Sequence[Doc], near: Doc) -> list[Doc]:
    """Return the documents that share the most leading folders with `near`."""
    here = near.path.split("/")
    shared = [_shared(doc.path.split("/"), here) for doc in docs]
    most = max(shared, default=0)
    return [doc for doc, count in zip(docs, shared, strict=True) if count == most][:MAX_MEANT]


def resolve(paths: Paths, doc: Doc, kind: str, target: str) -> list[Doc]:
    """Return the stored documents that an import or a link in `doc` refers to."""
    otherwise = _modules if doc.family in SEPARATORS else _included
    rule = _linked if kind == "LINKS_TO" else _RULES.get(doc.family, otherwise)
    return rule(paths, doc, target)


def _included(paths: Paths, doc: Doc, target: str) -> list[Doc]:
    plain = target.strip("<>")
    beside = [] if target.startswith("<") else _first(paths, [_join(doc, plain)])
    return beside or paths.ending(plain, doc)


def _join(doc: Doc, relative: str) -> str:
    return posixpath.normpath(posixpath.join(doc.folder, relative))


def _first(paths: Paths, candidates: Iterable[str]) -> list[Doc]:
    return next(([doc] for path in candidates if (doc := paths.exact(path)) is not None), [])


def _first_ending(paths: Paths, doc: Doc, suffixes: Iterable[str]) -> list[Doc]:
    return next((found for suffix in suffixes if (found := paths.ending(suffix, doc))), [])


def _python(paths: Paths, doc: Doc, target: str) -> list[Doc]:
    plain = target.lstrip(".")
    dots = len(target) - len(plain)
    place = plain.replace(".", "/")
    if dots:
        base = _join(doc, "/".join([".", *[".."] * (dots - 1), place]))
        return _first(paths, (f"{base}.py", f"{base}/__init__.py", f"{base}.pyi", f"{base}/__init__.pyi"))
    endings = (f"{place}.py", f"{place}/__init__.py", f"{place}.pyi")
    beside = _first(paths, (path for ending in endings if (path := _join(doc, ending)) != doc.path))
    if beside:
        return beside
    found = [one for ending in endings for one in paths.ending(ending, doc) if one.id != doc.id]
    if "." not in plain:
        # The name is too common: accept only files at the top of a folder that contains the importing file.
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
        paths, [base, *(base + one for one in _JAVASCRIPT), *others, *(f"{base}/index{one}" for one in _JAVASCRIPT)]
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
    places = ["/".join(some) for some in (inner, inner[:-1]) if some]
    return _first_ending(paths, doc, [f"{place}{ending}" for place in places for ending in (".rs", "/mod.rs")])


def _modules(paths: Paths, doc: Doc, target: str) -> list[Doc]:
    """Return the file at this relative path or, failing that, a file whose path ends with it."""
    separator = SEPARATORS[doc.family]
    place = (target if "/" in target else target.replace(separator, "/")).lstrip("/")
    # The first namespace may stand for the source folder itself.
    places = (place, place.partition("/")[2]) if separator == "\\" else (place,)
    names = [one + extension for one in places for extension in ("", *_extensions(doc.family))]
    found = _first(paths, (_join(doc, name) for name in names if name))
    found = found or _first_ending(paths, doc, (name for name in names if "/" in name))
    return [one for one in found if one.id != doc.id]


def _extensions(family: str) -> Iterator[str]:
    return (extension for extension, (_, of) in LANGUAGES.items() if of == family)


def _linked(paths: Paths, doc: Doc, target: str) -> list[Doc]:
    plain = target.rstrip("/")
    if plain.startswith("/"):
        found = _first(paths, (plain,)) or paths.ending(plain.lstrip("/"), doc)
    else:
        base = _join(doc, plain)
        found = _first(paths, (base, *(base + extension for extension in MARKDOWN_EXTENSIONS), f"{base}/README.md"))
        if not found and not plain.startswith("."):
            names = (plain, *(plain + extension for extension in MARKDOWN_EXTENSIONS))
            found = _first_ending(paths, doc, names)
    return [one for one in found if one.id != doc.id]


_RULES: dict[str, Callable[[Paths, Doc, str], list[Doc]]] = {
    "python": _python,
    "javascript": _javascript,
    "go": lambda paths, doc, target: paths.go_package(target, doc),
    "rust": _rust,
}
