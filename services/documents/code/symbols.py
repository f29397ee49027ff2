"""What a text of code defines, calls and imports, and where a Markdown text links to.

Names only, as they are written: what they mean is found out when somebody asks, among all that is stored by then.
"""

from __future__ import annotations

import posixpath
import re
import urllib.parse
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import tree_sitter

from services.documents.code.grammars import MARKDOWN, MARKDOWN_EXTENSIONS, language_of, loaded

MAX_CODE_BYTES = 1024 * 1024
"""Longer ones are generated; they are stored and searched like any other, and not parsed."""
MAX_MEAN_LINE = 300
"""Lines longer than this on the average are a program's, which has given all names anew."""
MAX_SYMBOLS = 5000
MAX_REFERENCES = 20_000
MAX_NAME = 200

CALLS, IMPORTS, LINKS_TO = "CALLS", "IMPORTS", "LINKS_TO"
EXTENDS = "EXTENDS"
"""Of a class: told nobody, but needed to know what is called on `self` and `super()`."""

_KINDS = ("function", "method", "class", "interface", "enum", "type", "struct", "trait", "macro", "module", "impl")
_HOLDERS = frozenset({"class", "interface", "enum", "struct", "trait", "impl"})
_LINK = re.compile(r"\]\(\s*<?([^\s()<>]+(?:\([^\s()<>]*\)[^\s()<>]*)*)")
_DEFINED_LINK = re.compile(r"^ {0,3}\[[^\[\]\n]+\]:[ \t]*<?([^\s<>]+)>?", re.MULTILINE)
_WIKILINK = re.compile(r"\[\[([^\[\]\n|#]+)(?:#[^\[\]\n|]*)?(?:\|[^\[\]\n]*)?\]\]")
_CODE = re.compile(r"^(```|~~~).*?^\1|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


@dataclass(frozen=True, slots=True)
class Symbol:
    """A definition; `parent` is the index of the one around it, -1 where that is the file. Lines from 1."""

    name: str
    qualified: str
    kind: str
    first: int
    last: int
    parent: int


@dataclass(frozen=True, slots=True)
class Reference:
    """A name that is used by a symbol (its index; -1: by the file itself).

    `key` is what it is looked up by.  `target` is, of a call, what it is called on; of an import or a link, the
    whole of it.  `tentative` ones count only where something answers to them.
    """

    symbol: int
    kind: str
    key: str
    target: str
    tentative: bool = False


@dataclass(slots=True)
class Parsed:
    """All of one text."""

    language: str
    symbols: list[Symbol] = field(default_factory=list)
    references: list[Reference] = field(default_factory=list)


def parse(data: bytes, extension: str) -> Parsed | None:
    """None where the extension says that it is neither code nor Markdown that is understood."""
    if extension in MARKDOWN_EXTENSIONS:
        return _markdown(data.decode("utf-8", "replace"))
    language = language_of(extension)
    if language is None:
        return None
    parsed = Parsed(language.name)
    if len(data) > MAX_CODE_BYTES or len(data) > MAX_MEAN_LINE * (data.count(b"\n") + 4):
        return parsed
    grammar, query = loaded(language)
    tree = tree_sitter.Parser(grammar).parse(data)
    matches = [captures for _, captures in tree_sitter.QueryCursor(query).matches(tree.root_node)]
    spans = _define(parsed, matches)
    seen: set[tuple[int, str, str, str]] = set()
    for captures in matches:
        for reference in _references(captures, language.family, spans):
            key = (reference.symbol, reference.kind, reference.key, reference.target)
            if key not in seen and reference.key and len(seen) < MAX_REFERENCES:
                seen.add(key)
                parsed.references.append(reference)
    return parsed


def _text(node: tree_sitter.Node) -> str:
    return (node.text or b"").decode("utf-8", "replace")[:MAX_NAME]


class _Spans:
    """Which definition stands around a place, the innermost one."""

    def __init__(self, spans: Sequence[tuple[int, int, int]]) -> None:
        # By start; of two that start together, the outer one first.
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
        """The symbol's index; -1 for the file."""
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


def _references(captures: Mapping[str, list[tree_sitter.Node]], family: str, spans: _Spans) -> Sequence[Reference]:
    if "call" in captures:
        node = captures["call"][0]
        return [Reference(spans.at(node.start_byte), CALLS, _text(node),
                          _text(captures["on"][0]) if "on" in captures else "")]  # fmt: skip
    if "base" in captures:
        node = captures["base"][0]
        text = _text(node)
        return [Reference(spans.at(node.start_byte), EXTENDS, re.split(r"\.|::", text)[-1], text)]
    if "from" in captures:
        return _from(captures["from"][0])
    if "import" not in captures:
        return []
    node = captures["import"][0]
    text = _text(node)
    if family == "rust":
        return [Reference(-1, IMPORTS, *one) for one in _used(text)]
    if family == "java":
        return [Reference(-1, IMPORTS, text.rsplit(".", 1)[-1], text)]
    target = text if family == "python" else text.strip("\"'`<>")
    if family == "c" and text.startswith("<"):
        target = text
    return [Reference(-1, IMPORTS, _stem(target, family), target)]


def _from(node: tree_sitter.Node) -> list[Reference]:
    """`from a import b`: the module, and each name, which may be a module as well."""
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


def _used(text: str) -> list[tuple[str, str]]:
    """The key and the whole of each path of a Rust `use`; braces are written out, one level deep."""
    text = re.sub(r"\s+as\s+\w+|\s", "", text)
    base, brace, rest = text.partition("{")
    paths = [base + part for part in rest.rstrip("}").split(",") if part] if brace and "{" not in rest else [base]
    return [(path.rstrip(":*").rsplit("::", 1)[-1], path.rstrip(":*")) for path in paths]


def _stem(target: str, family: str) -> str:
    """What the file of a module is called, without its extension."""
    if family == "python":
        return target.rsplit(".", 1)[-1] or "__init__"
    last = posixpath.basename(target.strip("<>").rstrip("/"))
    return stem(last) if family in ("c", "javascript") else last


def stem(name: str) -> str:
    """The name of a file without its last extension."""
    base, dot, _ = name.rpartition(".")
    return base if dot and base else name


def _markdown(text: str) -> Parsed:
    parsed = Parsed(MARKDOWN)
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
