"""Extracts what code defines, calls and imports, and the links of Markdown texts.

Only names are extracted, as written: they are resolved at query time, against everything stored by then.

A language consists of a row of `proto.ops.decode.LANGUAGES`, the package of its grammar in pyproject.toml, and a
tree-sitter query, `queries/NAME.scm`: `@name` is the name of a definition, and the capture around it its kind; `@owner`
is the type of a method defined outside it; `@call` is a callee's name and `@on` the object it is called on; `@import`
is an imported name; `@base` a base class; `@binds` an import or export, for `bindings`.
"""

from __future__ import annotations

import functools
import importlib
import posixpath
import re
import urllib.parse
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import tree_sitter

from proto.ops.decode import (
    CALLS,
    EXTENDS,
    IMPORTS,
    LANGUAGES,
    LINKS_TO,
    MARKDOWN_EXTENSIONS,
    MAX_CODE_BYTES,
    RENAMED,
    RENAMES,
    SEPARATORS,
    CodeText,
    Parsed,
    ParsedCode,
    Reference,
    Symbol,
    imported,
    stem,
)
from services.decode.bindings import Bound, bindings, renamings, unfolded

MAX_MEAN_LINE = 300
"""Longer average lines indicate minified code, in which everything was renamed."""
MAX_SYMBOLS = 5000
MAX_REFERENCES = 20_000
MAX_NAME = 200

_KINDS = (
    "function", "method", "class", "interface", "enum", "type", "struct", "trait", "macro", "module", "impl", "table",
    "view",
)  # fmt: skip
_HOLDERS = frozenset({"class", "interface", "enum", "struct", "trait", "impl"})
_LINK = re.compile(r"\]\(\s*<?([^\s()<>]+(?:\([^\s()<>]*\)[^\s()<>]*)*)")
_DEFINED_LINK = re.compile(r"^ {0,3}\[[^\[\]\n]+\]:[ \t]*<?([^\s<>]+)>?", re.MULTILINE)
_WIKILINK = re.compile(r"\[\[([^\[\]\n|#]+)(?:#[^\[\]\n|]*)?(?:\|[^\[\]\n]*)?\]\]")
_CODE = re.compile(r"^(```|~~~).*?^\1|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")

_QUERIES: Final = Path(__file__).parent / "queries"
_PARTS: Final = {
    "javascript": ("javascript", "javascript_classes"),
    "typescript": ("javascript", "typescript"),
    "tsx": ("javascript", "typescript"),
    "cpp": ("c", "cpp"),
}
"""The queries of languages that use others than the one of their name."""
_GRAMMARS: Final = {
    "typescript": ("tree_sitter_typescript", "language_typescript"),
    "tsx": ("tree_sitter_typescript", "language_tsx"),
    "csharp": ("tree_sitter_c_sharp", "language"),
    "php": ("tree_sitter_php", "language_php"),
}
"""Module and function of grammars, if not `tree_sitter_NAME` and `language`."""


@functools.cache
def loaded(name: str) -> tuple[tree_sitter.Language, tree_sitter.Query]:
    """Load a language by its name. This costs milliseconds and memory, so only the languages that occur are loaded."""
    module, function = _GRAMMARS.get(name, (f"tree_sitter_{name}", "language"))
    grammar = tree_sitter.Language(getattr(importlib.import_module(module), function)())
    parts = ((_QUERIES / f"{part}.scm").read_text() for part in _PARTS.get(name, (name,)))
    return grammar, tree_sitter.Query(grammar, "".join(parts))


def parse_all(contents: Sequence[CodeText]) -> ParsedCode:
    """Parse all texts; the result is empty if there is not enough memory."""
    nothing = Parsed("none", "none")
    try:
        return ParsedCode(contents=[parse(one.data, one.extension) or nothing for one in contents])
    except MemoryError:
        return ParsedCode(contents=[])


def parse(data: bytes, extension: str) -> Parsed | None:
    """Parse a text; None if the extension is neither Markdown nor a supported language."""
    if extension in MARKDOWN_EXTENSIONS:
        return _markdown(data.decode("utf-8", "replace"))
    language = LANGUAGES.get(extension)
    if language is None:
        return None
    name, family = language
    parsed = Parsed(name, family)
    if len(data) > MAX_CODE_BYTES or len(data) > MAX_MEAN_LINE * (data.count(b"\n") + 4):
        return parsed
    grammar, query = loaded(name)
    tree = tree_sitter.Parser(grammar).parse(data)
    matches = [captures for _, captures in tree_sitter.QueryCursor(query).matches(tree.root_node)]
    spans = _define(parsed, matches)
    bound = Bound(parsed.symbols, family)
    for captures in matches:
        for node in captures.get("binds", ()):
            bound.add(spans.at(node.start_byte), bindings(node, family))
    seen: set[tuple[int, str, str, str]] = set()
    for captures in matches:
        for reference in _references(captures, family, spans, bound):
            key = (reference.symbol, reference.kind, reference.key, reference.target)
            if key not in seen and reference.key and len(seen) < MAX_REFERENCES:
                seen.add(key)
                parsed.references.append(reference)
    return parsed


def _text(node: tree_sitter.Node) -> str:
    return (node.text or b"").decode("utf-8", "replace")[:MAX_NAME]


class _Spans:
    """Finds the innermost definition around a position."""

    def __init__(self, spans: Sequence[tuple[int, int, int]]) -> None:
        # Ordered by start; if two start together, the outer one comes first.
        self._spans = sorted(spans, key=lambda span: (span[0], -span[1]))
        self._starts = [span[0] for span in self._spans]
        self._around: list[int] = []
        open_: list[int] = []
        for index, (start, _, _) in enumerate(self._spans):
            while open_ and self._spans[open_[-1]][1] <= start:
                open_.pop()
            self._around.append(open_[-1] if open_ else -1)
            open_.append(index)

    def at(self, place: int) -> int:
        """Return the symbol's index, or -1 for the file."""
        index = bisect_right(self._starts, place) - 1
        while index >= 0:
            _, end, symbol = self._spans[index]
            if place < end:
                return symbol
            index = self._around[index]
        return -1


def _define(parsed: Parsed, matches: Sequence[Mapping[str, list[tree_sitter.Node]]]) -> _Spans:
    found: dict[tuple[int, int], tuple[str, tree_sitter.Node, str, str]] = {}
    for captures in matches:
        if "name" not in captures:
            continue
        kind = next(one for one in _KINDS if one in captures)
        node = captures[kind][0]
        owner = re.sub(r"[*&\s]|<.*|\[.*", "", _text(captures["owner"][0])) if "owner" in captures else ""
        found.setdefault((node.start_byte, node.end_byte), (kind, node, _text(captures["name"][0]), owner))
    ordered = sorted(found.items(), key=lambda item: (item[0][0], -item[0][1]))[:MAX_SYMBOLS]
    spans: list[tuple[int, int, int]] = []
    open_: list[tuple[int, int, str, str]] = []
    for (start, end), (kind, node, name, owner) in ordered:
        while open_ and open_[-1][0] <= start:
            open_.pop()
        around = open_[-1] if open_ else (0, -1, "", "")
        plain = re.sub(r"<.*", "", name) if kind == "impl" else name
        qualified = ".".join(part for part in (around[2], owner, plain) if part)[:MAX_NAME]
        symbol = around[1]
        if kind != "impl":
            is_method = kind == "function" and (around[3] in _HOLDERS or owner)
            own = "method" if is_method else kind
            first, last = node.start_point[0] + 1, node.end_point[0] + 1
            parsed.symbols.append(Symbol(plain, qualified, own, first, last, around[1]))
            symbol = len(parsed.symbols) - 1
        spans.append((start, end, symbol))
        open_.append((end, symbol, qualified, kind))
    return _Spans(spans)


def _references(
    captures: Mapping[str, list[tree_sitter.Node]], family: str, spans: _Spans, bound: Bound
) -> Sequence[Reference]:
    if "call" in captures:
        node = captures["call"][0]
        on = " ".join(_text(captures["on"][0]).split()) if "on" in captures else ""
        caller, key = spans.at(node.start_byte), _text(node).rsplit("\\", 1)[-1]
        found = bound.meant(caller, key, on) or [(key, on)]
        # Several imports that bind one name are alternatives.
        return [Reference(caller, CALLS, *one, tentative=len(found) > 1) for one in found]
    if "base" in captures:
        node = captures["base"][0]
        holder, text = spans.at(node.start_byte), _text(node)
        key = re.split(r"\.|::|\\", text)[-1]
        on = text[: -len(key)].rstrip(".:\\")
        return [Reference(holder, EXTENDS, *one) for one in bound.meant(holder, key, on) or [(key, text)]]
    if "binds" in captures:
        return [
            one
            for own, exported, module in renamings(captures["binds"][0], family)
            for one in (
                Reference(-1, RENAMES, own, exported),
                Reference(-1, RENAMED, exported, imported(module, own) if module else own),
            )
        ]
    if "from" in captures:
        return _from(captures["from"][0])
    if "import" not in captures:
        return []
    node = captures["import"][0]
    text = _text(node)
    if family in SEPARATORS:
        return [Reference(-1, IMPORTS, *one) for one in _used(text.strip("\"'"), SEPARATORS[family])]
    target = text if family == "python" else text.strip("\"'`<>")
    if family == "c" and text.startswith("<"):
        target = text
    return [Reference(-1, IMPORTS, _stem(target, family), target)]


def _from(node: tree_sitter.Node) -> list[Reference]:
    """Return the references of `from a import b`: the module, and each name, which may also be a module."""
    module = node.child_by_field_name("module_name")
    if module is None:
        return []
    base = _text(module)
    found = [] if not base.strip(".") else [Reference(-1, IMPORTS, _stem(base, "python"), base)]
    for one in node.children_by_field_name("name"):
        inner = one.child_by_field_name("name") if one.type == "aliased_import" else one
        name = _text(inner or one)
        whole = base + name if base.endswith(".") else f"{base}.{name}"
        found.append(Reference(-1, IMPORTS, _stem(name, "python"), whole, tentative=bool(base.strip("."))))
    if not found:
        found.append(Reference(-1, IMPORTS, "__init__", base))
    return found


def _used(text: str, separator: str) -> list[tuple[str, str]]:
    """Return the key and the full path of each import, with braces expanded."""
    if "$" in text:
        # A shell variable, usually the folder of the script itself.
        text = text.rpartition("$")[2].partition("/")[2]
    text = re.sub(r"^import\s+|\s+(?:as|=>)\s+\w+|\s", "", text)
    paths = [re.sub(r"(?:::|\.)(?:[*_]|self)?$", "", path) for path in unfolded(text)]
    return [(stem(posixpath.basename(path)) if "/" in path else path.rsplit(separator, 1)[-1], path) for path in paths]


def _stem(target: str, family: str) -> str:
    """Return the name of a module's file, without its extension."""
    if family == "python":
        return target.rsplit(".", 1)[-1] or "__init__"
    last = posixpath.basename(target.strip("<>").rstrip("/"))
    return stem(last) if family in ("c", "javascript") else last


def _markdown(text: str) -> Parsed:
    parsed = Parsed("markdown", "markdown")
    if len(text) > MAX_CODE_BYTES:
        return parsed
    bare = _CODE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    seen: set[str] = set()
    for pattern, wiki in ((_LINK, False), (_DEFINED_LINK, False), (_WIKILINK, True)):
        for match in pattern.finditer(bare):
            target = match[1].strip()
            if not wiki:
                if _SCHEME.match(target) or target.startswith(("#", "//")):
                    continue
                target = urllib.parse.unquote(target.split("#", 1)[0].split("?", 1)[0])
            if not target or target in seen or len(seen) >= MAX_REFERENCES:
                continue
            seen.add(target)
            last = posixpath.basename(target.rstrip("/"))
            key = last if wiki and "." not in last else stem(last)
            parsed.references.append(Reference(-1, LINKS_TO, key[:MAX_NAME], target[:1000], tentative=wiki))
    return parsed
