"""Resolves what a file's imports bind names to, and which names it exports under another name.

This happens while the file is parsed: a call through an alias is later looked up by the name that the other file uses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import tree_sitter

from proto.ops.decode import SEPARATORS, Symbol, imported

_HEAD: Final = re.compile(r"(new\s+)?([\w$]+)(.*)", re.DOTALL)
_ALIASED: Final = re.compile(r"(.+?)\s+(?:as|=>)\s+(\w+)", re.DOTALL)
_KEYWORDS: Final = re.compile(r"^(?:pub(?:\([^)]*\))?\s+)?(?:use|import|using)\s+(?:(?:static|function|const)\s+)?")


class Binding(NamedTuple):
    """A name that an import binds: to something in a module or, if `name` is empty, to the module itself."""

    alias: str
    module: str
    name: str


class Renaming(NamedTuple):
    """Something that a file exports under another name than its own."""

    own: str
    exported: str
    module: str = ""
    """The module it is re-exported from, if the file itself does not define or import it."""


class Bound:
    """Names bound by imports, each in the scope of its import."""

    def __init__(self, symbols: Sequence[Symbol], family: str) -> None:
        self._symbols = symbols
        self._family = family
        # A definition shadows an import of the same name.
        self._defined = {one.name for one in symbols if one.kind != "method"}
        self._bound: dict[str, list[tuple[int, Binding]]] = {}

    def add(self, scope: int, bindings: Iterator[Binding]) -> None:
        """Add the bindings of an import inside a symbol; -1 is the whole file."""
        for one in bindings:
            if one.alias not in self._defined:
                self._bound.setdefault(one.alias, []).append((scope, one))

    def meant(self, caller: int, key: str, on: str) -> list[tuple[str, str]]:
        """Return the key and target of a call of `key`, on `on` if not empty. Several if several imports bind the name;
        empty if no import does."""
        match = _HEAD.fullmatch(on) if on else None
        head = match[2] if match else key
        if (on and match is None) or head not in self._bound:
            return []
        found = []
        for one in self._visible(caller, self._bound[head]):
            if match is not None:
                rest = one.name + match[3]
                found.append((key, imported(one.module, rest if one.name else rest.lstrip(".:\\"))))
            elif one.name:
                found.append((one.name, imported(one.module, "")))
            elif self._family == "javascript":
                # The call goes to the value of `module.exports`.
                found.append(("default", imported(one.module, "")))
        return found

    def _visible(self, caller: int, bound: Sequence[tuple[int, Binding]]) -> list[Binding]:
        """Return the bindings of the innermost scope around the caller that has any."""
        while True:
            if found := [one for scope, one in bound if scope == caller]:
                return found
            if caller < 0:
                return []
            caller = self._symbols[caller].parent


def bindings(node: tree_sitter.Node, family: str) -> Iterator[Binding]:
    """Yield the names that an import binds to something of another name or, in JavaScript, to anything."""
    if family == "javascript":
        return _javascript(node)
    if family == "python":
        return _python(node)
    if family == "go":
        return _go(node)
    return _by_path(_text(node), family)


def renamings(node: tree_sitter.Node, family: str) -> Iterator[Renaming]:
    """Yield what an import or export re-exports, or exports, under another name."""
    if family == "javascript":
        yield from (one for one in _exported(node) if one.own and (one.own != one.exported or one.module))
    elif family == "python" and node.parent is not None and node.parent.type == "module":
        yield from (Renaming(one.name, one.alias) for one in _python(node) if one.name)
    elif family == "rust" and _text(node).startswith("pub"):
        yield from (Renaming(one.name, one.alias) for one in _by_path(_text(node), family))


def _text(node: tree_sitter.Node | None) -> str:
    return (node.text or b"").decode("utf-8", "replace") if node is not None else ""


def _python(node: tree_sitter.Node) -> Iterator[Binding]:
    module = _text(node.child_by_field_name("module_name"))
    for one in node.children_by_field_name("name"):
        if one.type == "aliased_import":
            name, alias = _text(one.child_by_field_name("name")), _text(one.child_by_field_name("alias"))
            yield Binding(alias, module, name) if module else Binding(alias, name, "")


def _go(node: tree_sitter.Node) -> Iterator[Binding]:
    name = node.child_by_field_name("name")
    if name is not None and name.type == "package_identifier":
        yield Binding(_text(name), _text(node.child_by_field_name("path")).strip('"`'), "")


def _javascript(node: tree_sitter.Node) -> Iterator[Binding]:
    if node.type == "variable_declarator":
        yield from _required(node)
        return
    module = _unquoted(node.child_by_field_name("source"))
    for clause in node.named_children:
        if clause.type == "import_require_clause":
            yield Binding(_text(clause.named_children[0]), _unquoted(clause.child_by_field_name("source")), "")
        for one in clause.named_children if clause.type == "import_clause" else ():
            if one.type == "identifier":
                yield Binding(_text(one), module, "default")
            elif one.type == "namespace_import":
                yield Binding(_text(one.named_children[-1]), module, "")
            for name, alias in _specified(one):
                yield Binding(alias, module, name)


def _specified(clause: tree_sitter.Node) -> Iterator[tuple[str, str]]:
    """Yield the name and alias of each specifier in braces."""
    for one in clause.named_children:
        if one.type in ("import_specifier", "export_specifier"):
            name = _text(one.child_by_field_name("name")).strip("\"'")
            yield name, _text(one.child_by_field_name("alias")).strip("\"'") or name


def _required(node: tree_sitter.Node) -> Iterator[Binding]:
    """Yield the bindings of `const … = require("…")` or `await import("…")`: whole, destructured, or a single
    member."""
    name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
    member = ""
    if value is not None and value.type == "await_expression":
        value = value.named_children[0]
    elif value is not None and value.type == "member_expression":
        member = _text(value.child_by_field_name("property"))
        value = value.child_by_field_name("object")
    called = _text(value.child_by_field_name("function")) if value is not None else ""
    given = value.child_by_field_name("arguments") if value is not None else None
    if name is None or called not in ("require", "import") or given is None or len(given.named_children) != 1:
        return
    module = _unquoted(given.named_children[0])
    if name.type == "identifier":
        yield Binding(_text(name), module, member)
    elif name.type == "object_pattern" and not member:
        for one in name.named_children:
            if one.type == "shorthand_property_identifier_pattern":
                yield Binding(_text(one), module, _text(one))
            elif one.type == "pair_pattern":
                yield Binding(_text(one.child_by_field_name("value")), module, _text(one.child_by_field_name("key")))


def _exported(node: tree_sitter.Node) -> Iterator[Renaming]:
    if node.type == "export_statement":
        module = _unquoted(node.child_by_field_name("source"))
        for clause in node.named_children:
            yield from (Renaming(*one, module) for one in _specified(clause))
        if any(one.type == "default" for one in node.children):
            declared = node.child_by_field_name("declaration")
            value = node.child_by_field_name("value") if declared is None else declared.child_by_field_name("name")
            yield Renaming(_identifier(value), "default")
    elif node.type == "assignment_expression":
        to, value = _text(node.child_by_field_name("left")), node.child_by_field_name("right")
        if to == "module.exports" and value is not None and value.type == "object":
            for one in value.named_children:
                if one.type == "pair":
                    yield Renaming(_identifier(one.child_by_field_name("value")), _text(one.child_by_field_name("key")))
        elif to == "module.exports":
            yield Renaming(_identifier(value), "default")
        elif match := re.fullmatch(r"(?:module\.)?exports\.([\w$]+)", to):
            yield Renaming(_identifier(value), match[1])


def _identifier(node: tree_sitter.Node | None) -> str:
    return _text(node) if node is not None and node.type in ("identifier", "type_identifier") else ""


def _unquoted(node: tree_sitter.Node | None) -> str:
    return _text(node).strip("\"'`")


def _by_path(text: str, family: str) -> Iterator[Binding]:
    """Yield the names that an import of `a::b` or `a.b` binds under an alias."""
    separator = SEPARATORS[family]
    plain = _KEYWORDS.sub("", text.strip()).rstrip("; \n")
    if family == "csharp":
        alias, equals, path = plain.partition("=")
        plain = f"{path.strip()} as {alias.strip()}" if equals else plain
    for path in unfolded(plain):
        if match := _ALIASED.fullmatch(path):
            module, _, name = re.sub(r"\s", "", match[1]).rpartition(separator)
            if name == "self":
                module, _, name = module.rpartition(separator)
            if match[2] not in (name, "_"):
                yield Binding(match[2], module, name)


def unfolded(text: str) -> list[str]:
    """Expand an import with braces, possibly nested, into its paths: `a::{b, c::{d, e}}` becomes `a::b`, `a::c::d` and
    `a::c::e`."""
    found: list[str] = []
    before: list[str] = [""]
    current = ""
    for part in re.split(r"([{},])", text):
        if part == "{":
            before.append(before[-1] + current.strip())
            current = ""
        elif part in (",", "}"):
            if current.strip():
                found.append(before[-1] + current.strip())
            current = ""
            if part == "}" and len(before) > 1:
                before.pop()
        else:
            current += part
    return [*found, before[-1] + current.strip()] if current.strip() else found
