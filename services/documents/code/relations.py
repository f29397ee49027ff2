"""The edges of the document graph, derived from the names that stored texts define and use.

A call is `resolved` if the language's rules leave a single definition: in the same file, in its imports, on `self` or
on a named type. If several are left, or the receiver is unknown, each possible definition gets an edge marked
`ambiguous`. Names that are not defined in the store have no edges.
"""

from __future__ import annotations

import builtins
import io
import re
from collections.abc import Iterator, Sequence
from functools import cache

import apsw

from proto.ops.decode import CALLS, EXTENDS, IMPORTS, LINKS_TO, RENAMED, RENAMES, SEPARATORS, of_import, stem
from services.documents.code.imports import Doc, Paths, nearest, resolve
from services.documents.code.nodes import CodeNode, Definition, Edge, Use, file_node, module_node, symbol_node

DEFINES = "DEFINES"
RELATIONS = (DEFINES, CALLS, IMPORTS, LINKS_TO)
RESOLVED, AMBIGUOUS = "resolved", "ambiguous"
MAX_CANDIDATES = 16
"""A call with more possible definitions gets no edges."""
MAX_USES = 2000
"""Maximum number of uses of a name to examine when looking for references to a definition."""
MAX_PASSED_ON = 4
"""Maximum length of a chain of re-exports."""
MAX_EXPORTERS = 500

_CALLABLE = frozenset({"function", "method", "class", "struct", "macro", "type"})
_SUPER = frozenset({"super", "super()", "base", "parent"})
_SELF = frozenset({"self", "this", "$this", "cls", "Self", "static"}) | _SUPER
_WITHOUT_SELF = frozenset({"java", "c", "csharp", "swift", "ruby"})
"""Families in which a method can call another method of its class by its bare name."""
_SUPER_OF = re.compile(r"super\(\s*(\w+)\s*,")
_CLASSES = frozenset({"class", "struct", "interface", "trait", "enum"})
_BUILTINS = frozenset(dir(builtins))
_BUILTIN_METHODS = frozenset(
    name for type_ in (str, bytes, list, tuple, dict, set, int, float, io.TextIOWrapper, io.BytesIO)
    for name in dir(type_) if not name.startswith("__")
)  # fmt: skip
_USE = "SELECT object, symbol, kind, name, target, tentative FROM idx.reference"
_SYMBOL = (
    "SELECT symbol.id, symbol.object, symbol.name, qualified, kind, first, last, parent, family"
    " FROM idx.symbol JOIN idx.code ON code.object=symbol.object"
)


def _last(on: str) -> str:
    """Return the last name in the receiver of a method call, without call arguments."""
    return re.split(r"\.|::|->|\\", re.sub(r"\(.*\)$", "", on, flags=re.DOTALL))[-1]


class Relations:
    """The edges, on one snapshot of the store."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self.paths = Paths(db)
        self.symbols = cache(self._symbols)
        self.holders = cache(self._holders)
        self._uses_of = cache(self._uses)
        self._imports_of = cache(self._imports)
        self._defined = cache(self._definitions)
        self._resolved = cache(self._modules)
        self._exported_as = cache(self._exports)

    def node(self, key: str) -> CodeNode | None:
        """Return a node by its key, or by the path of a document."""
        kind, _, rest = key.partition(":")
        if kind == "symbol" and "#" in rest:
            path, _, inner = rest.rpartition("#")
            doc = self.paths.exact(path)
            qualified, at, line = inner.rpartition("@")
            if doc is None:
                return None
            found = (
                symbol_node(doc, symbol)
                for symbol in self.symbols(doc.object)
                if (symbol.qualified, str(symbol.first)) == (qualified, line) or (not at and symbol.qualified == inner)
            )
            return next(found, None)
        if kind == "module" and rest:
            query = "SELECT 1 FROM idx.reference WHERE kind=? AND target=? LIMIT 1"
            return module_node(rest) if self._db.execute(query, (IMPORTS, rest)).get else None
        doc = self.paths.exact(rest if kind == "file" else key)
        return None if doc is None else file_node(doc)

    def _symbols(self, object_: int) -> list[Definition]:
        """Return the definitions in a content, in order."""
        query = f"{_SYMBOL} WHERE symbol.object=? ORDER BY symbol.id"
        return [Definition(*row) for row in self._db.execute(query, (object_,))]

    def out(self, node: CodeNode) -> Iterator[Edge]:
        if node.doc is None:
            return
        doc, symbol = node.doc, node.symbol
        for one in self.symbols(doc.object):
            if symbol is None or one.parent == symbol.id:
                yield Edge(node, DEFINES, symbol_node(doc, one))
        for use in self._uses_of(doc.object):
            if use.kind == CALLS:
                if use.symbol == (0 if symbol is None else symbol.id):
                    yield from self._calls(node, use)
            elif symbol is None and use.kind in (IMPORTS, LINKS_TO):
                yield from self._imported(node, use)

    def into(self, node: CodeNode) -> Iterator[Edge]:
        if node.symbol is not None and node.doc is not None:
            yield Edge(file_node(node.doc), DEFINES, node)
            if node.symbol.parent:
                around = next(one for one in self.symbols(node.doc.object) if one.id == node.symbol.parent)
                yield Edge(symbol_node(node.doc, around), DEFINES, node)
            for use in self._using(self._names_of(node.symbol), CALLS):
                for source in self._sources(use):
                    yield from (edge for edge in self._calls(source, use) if edge.target.key == node.key)
            return
        if node.doc is not None:
            names = {node.doc.name, stem(node.doc.name), node.doc.folder.rsplit("/", 1)[-1], "__init__"}
        else:
            last = re.split(r"[./]|::", node.label.strip("<>"))
            names = {last[-1], last[-2] if len(last) > 1 else last[-1], node.label.rsplit("/", 1)[-1]}
        for kind in (IMPORTS, LINKS_TO):
            for use in self._using(sorted(names), kind):
                for source in self._sources(use):
                    yield from (edge for edge in self._imported(source, use) if edge.target.key == node.key)

    def _sources(self, use: Use) -> Iterator[CodeNode]:
        """Yield the nodes that contain a use; several documents may have the same content."""
        symbol = next((one for one in self.symbols(use.object) if one.id == use.symbol), None)
        for doc in self.holders(use.object):
            yield file_node(doc) if symbol is None else symbol_node(doc, symbol)

    def _imported(self, node: CodeNode, use: Use) -> Iterator[Edge]:
        assert node.doc is not None
        found = resolve(self.paths, node.doc, use.kind, use.target)
        for doc in found:
            if doc.id != node.doc.id:
                yield Edge(node, use.kind, file_node(doc))
        if not found and use.kind == IMPORTS and not use.tentative:
            yield Edge(node, IMPORTS, module_node(use.target))

    def _calls(self, node: CodeNode, use: Use) -> Iterator[Edge]:
        assert node.doc is not None
        found, certain = self._called(node.doc, node.symbol, use)
        if len(found) > MAX_CANDIDATES:
            return
        targets = [symbol_node(doc, one) for one in found for doc in self._nearest_holders(one.object, node.doc)]
        certainty = RESOLVED if certain and len(targets) == 1 and not use.tentative else AMBIGUOUS
        for target in targets:
            yield Edge(node, CALLS, target, certainty)

    def _called(self, doc: Doc, caller: Definition | None, use: Use) -> tuple[list[Definition], bool]:
        """Return the possible definitions of a call, and whether a single one is certain."""
        if (imported := of_import(use.target)) is not None:
            return self._imported_call(doc, caller, use, *imported)
        family = doc.family
        candidates = self._callable(use.name, family)
        if not candidates:
            # An import may rename it.
            passed_on = self._exported_as(use.name) and not use.target
            return self._passed_on(self._imported_docs(doc), use.name) if passed_on else [], True
        on = re.sub(r"^new\s+", "", use.target)
        explicit = _SUPER_OF.match(on)
        if explicit is not None:
            around = self._class_around(caller)
            if around is None or around.name != explicit[1]:
                # `super` of a class other than the enclosing one.
                return [], False
            on = "super()"
        on = re.sub(r"\(.*\)$", "", on, flags=re.DOTALL) if on not in _SELF else on
        if not on:
            return self._bare(doc, caller, use, candidates)
        if on in _SELF:
            return self._on_self(doc, caller, candidates, inherited=on in _SUPER)
        last = re.split(r"\.|::|->|\\", on)[-1]
        typed = [one for one in candidates if f".{one.qualified}".endswith(f".{last}.{one.name}")]
        if typed:
            return self._preferred(doc, typed), True
        modules = [docs for use_, docs in self._imports_of(doc) if last == use_.name or on == use_.target]
        if modules:
            objects = {one.object for docs in modules for one in docs}
            # In Lua, a module's functions are methods of its table.
            has = [one for one in candidates if one.object in objects and (one.kind != "method" or family == "lua")]
            return has or self._passed_on([one for docs in modules for one in docs], use.name), True
        if family == "python" and use.name in _BUILTIN_METHODS:
            # The receiver is almost always a built-in type.
            return [], False
        return [one for one in candidates if one.kind == "method"], False

    def _imported_call(
        self, doc: Doc, caller: Definition | None, use: Use, module: str, inside: str
    ) -> tuple[list[Definition], bool]:
        """Like `_called`, for a call through an import.  `inside` is the receiver within the module, or empty."""
        docs = self._resolved(doc, module)
        holder = _last(inside)
        if not holder or (holder == "default" and inside == holder):
            found = self._passed_on(docs, use.name)
        if holder and not (inside == "default" and found):
            found = self._passed_on(docs, use.name, holder)
        if not found and holder:
            # It may be a submodule.
            separator = SEPARATORS.get(doc.family, "" if module.endswith(".") else ".")
            found = self._passed_on(self._resolved(doc, f"{module}{separator}{inside}"), use.name)
        if found:
            return found, True
        # Resolve it as if it were not renamed, but exclude this file's own definitions.
        plain = Use(use.object, use.symbol, use.kind, use.name, inside, use.tentative)
        found, certain = self._called(doc, caller, plain)
        return [one for one in found if one.object != doc.object], certain

    def _passed_on(self, docs: Sequence[Doc], name: str, holder: str = "") -> list[Definition]:
        """Return the definitions that documents export as `name`, or the method `name` of the class exported as
        `holder`.  They may be defined in the documents or re-exported from their imports."""
        seen: set[tuple[int, str]] = set()
        level = [(one, holder or name) for one in docs]
        for _ in range(MAX_PASSED_ON):
            level = [pair for pair in dict.fromkeys(level) if (pair[0].id, pair[1]) not in seen][:MAX_EXPORTERS]
            seen |= {(one.id, called) for one, called in level}
            found: dict[int, Definition] = {}
            following: list[tuple[Doc, str]] = []
            for one, exported in level:
                own, elsewhere = self._own(one, exported)
                following += elsewhere
                for called in own:
                    following += [] if elsewhere else [(other, called) for other in self._imported_docs(one)]
                    for each in self._callable(name if holder else called, one.family):
                        fits = f".{each.qualified}".endswith(f".{called}.{name}") if holder else each.kind != "method"
                        if fits and each.object == one.object:
                            found[each.id] = each
            if found:
                return list(found.values())
            level = following
        return []

    def _own(self, doc: Doc, exported: str) -> tuple[list[str], list[tuple[Doc, str]]]:
        """Return the local names of an export in a document, and the documents and names it is re-exported from."""
        targets = [use.target for use in self._uses_of(doc.object) if use.kind == RENAMED and use.name == exported]
        passed_on = [one for target in targets if (one := of_import(target)) is not None]
        elsewhere = [(other, own) for module, own in passed_on for other in self._resolved(doc, module)]
        return [exported, *(target for target in targets if of_import(target) is None)], elsewhere

    def _names_of(self, symbol: Definition) -> list[str]:
        """Return its name, and the names under which files export it."""
        names = [symbol.name]
        for name in names:
            names += sorted({use.target for use in self._using((name,), RENAMES)} - set(names))
        return names

    def _callable(self, name: str, family: str) -> list[Definition]:
        return [one for one in self._defined(name, family) if one.kind in _CALLABLE]

    def _exports(self, name: str) -> bool:
        """Return whether any file exports something under this name that has another name locally."""
        return next(self._using((name,), RENAMED), None) is not None

    def _modules(self, doc: Doc, module: str) -> list[Doc]:
        return resolve(self.paths, doc, IMPORTS, module)

    def _on_self(
        self, doc: Doc, caller: Definition | None, candidates: Sequence[Definition], *, inherited: bool
    ) -> tuple[list[Definition], bool]:
        """Find a method in the enclosing class or its nearest base class; only in base classes if `inherited`.

        The result is certain only if all nearer classes are stored and known.
        """
        methods = [one for one in candidates if one.kind == "method"]
        holder = self._class_around(caller)
        if holder is None:
            owner = "" if caller is None else caller.qualified.rpartition(".")[0]
            here = [one for one in methods if owner and one.object == doc.object
                    and one.qualified == f"{owner}.{one.name}"]  # fmt: skip
            return (here, True) if here and not inherited else (methods, False)
        known = True
        seen: set[int] = set()
        places = self._bases(doc, holder) if inherited else [(doc, holder)]
        # Breadth-first: the bases of a class come after all classes of its level.
        for place in places:
            if place is None:
                known = False
            elif place[1].id not in seen:
                seen.add(place[1].id)
                here = [method for method in methods if method.parent == place[1].id]
                if here:
                    return here, known
                places += self._bases(*place)
        # An unknown base class is probably not stored, so a method inherited from it has no definition here.
        return ([], False) if known or inherited else (methods, False)

    def _around(self, caller: Definition | None) -> Iterator[Definition]:
        """Yield the enclosing definitions, innermost first."""
        by_id = {one.id: one for one in self.symbols(caller.object)} if caller is not None else {}
        while caller is not None and (caller := by_id.get(caller.parent)) is not None:
            yield caller

    def _class_around(self, caller: Definition | None) -> Definition | None:
        """Return the innermost class that encloses a definition."""
        return next((one for one in self._around(caller) if one.kind in _CLASSES), None)

    def _bases(self, doc: Doc, holder: Definition) -> list[tuple[Doc, Definition] | None]:
        """Return the base classes in order; None for one that is not stored or is ambiguous."""
        found: list[tuple[Doc, Definition] | None] = []
        for use in self._uses_of(doc.object):
            if use.kind == EXTENDS and use.symbol == holder.id:
                classes = [one for one in self._defined(use.name, doc.family) if one.kind in _CLASSES]
                imported = of_import(use.target)
                on = "" if imported else use.target[: -len(use.name)].rstrip(".:")
                if imported is not None:
                    docs = self._resolved(doc, imported[0])
                    matching, certain = [one for one in self._passed_on(docs, use.name) if one.kind in _CLASSES], True
                elif on:
                    last = re.split(r"\.|::", on)[-1]
                    objects = {one.object for use_, docs in self._imports_of(doc) if last == use_.name for one in docs}
                    matching, certain = [one for one in classes if one.object in objects], True
                else:
                    matching, certain = self._bare(doc, None, use, classes)
                matching = [one for one in matching if one.id != holder.id]
                homes = self._nearest_holders(matching[0].object, doc) if certain and len(matching) == 1 else []
                found.append((homes[0], matching[0]) if len(homes) == 1 else None)
        return found

    def _bare(
        self, doc: Doc, caller: Definition | None, use: Use, candidates: Sequence[Definition]
    ) -> tuple[list[Definition], bool]:
        family = doc.family
        # A constructor call uses the class name, so skip constructors themselves.
        plain = [one for one in candidates if not one.qualified.endswith(f"{one.name}.{one.name}")]
        usable = plain if family in _WITHOUT_SELF else [one for one in plain if one.kind != "method"]
        local = [one for one in usable if one.object == doc.object]
        if local:
            around = {one.id for one in (caller, *self._around(caller)) if one is not None}
            return [one for one in local if one.parent in around] or local, True
        objects = self._imported_objects(doc)
        found = [one for one in usable if one.object in objects]
        if found:
            return found, True
        imported = self._imports_of(doc)
        named = [(use_, docs) for use_, docs in imported if use_.name == use.name]
        if family in ("python", "javascript"):
            if use.name in _BUILTINS and not named:
                return [], False
            if named:
                # Imported by name, from a package that re-exports it or from a module that is not stored.
                parents = [docs for use_, docs in imported if any(
                    other.target == f"{use_.target}.{use.name}" for other, _ in named) and docs]  # fmt: skip
                return (usable, True) if parents else ([], False)
            return usable, False
        return self._preferred(doc, usable), True

    def _preferred(self, doc: Doc, found: list[Definition]) -> list[Definition]:
        """Prefer definitions in the same file, then in its imports; otherwise return all."""
        if len(found) < 2:
            return found
        local = [one for one in found if one.object == doc.object]
        if local:
            return local
        objects = self._imported_objects(doc)
        return [one for one in found if one.object in objects] or found

    def _uses(self, object_: int) -> list[Use]:
        return [Use(*row) for row in self._db.execute(f"{_USE} WHERE object=? ORDER BY number", (object_,))]

    def _using(self, names: Sequence[str], kind: str) -> Iterator[Use]:
        for name in names:
            rows = self._db.execute(f"{_USE} WHERE name=? AND kind=? LIMIT ?", (name, kind, MAX_USES))
            yield from [Use(*row) for row in rows]

    def _imports(self, doc: Doc) -> list[tuple[Use, list[Doc]]]:
        uses = (use for use in self._uses_of(doc.object) if use.kind == IMPORTS)
        return [(use, self._resolved(doc, use.target)) for use in uses]

    def _imported_docs(self, doc: Doc) -> list[Doc]:
        return list(dict.fromkeys(one for _, docs in self._imports_of(doc) for one in docs))

    def _imported_objects(self, doc: Doc) -> set[int]:
        return {one.object for one in self._imported_docs(doc)}

    def _definitions(self, name: str, family: str) -> list[Definition]:
        # Skip contents without a document, which may be waiting for collection.
        query = (
            f"{_SYMBOL} WHERE symbol.name=? AND family=?"
            " AND EXISTS(SELECT 1 FROM document WHERE document.object=symbol.object) ORDER BY symbol.id LIMIT ?"
        )
        return [Definition(*row) for row in self._db.execute(query, (name, family, MAX_USES))]

    def _holders(self, object_: int) -> list[Doc]:
        return list(self.paths.where("object=? ORDER BY id", object_))

    def _nearest_holders(self, object_: int, near: Doc) -> list[Doc]:
        if object_ == near.object:
            return [near]
        holders = self.holders(object_)
        imported = set(self._imported_docs(near)) if len(holders) > 1 else set()
        return nearest([one for one in holders if one in imported] or holders, near)
