"""Sets keys of a mapping to data, written in YAML as a person would.

Existing equal values stay untouched; others are changed in the style that they have, with the comments in them.

Many readers of front matter use YAML 1.1, so values are written to mean the same in 1.1 and 1.2.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import unicodedata
from collections.abc import Container, Mapping
from difflib import SequenceMatcher

import yaml
from yaml.resolver import Resolver

from services.yaml import restructure
from services.yaml.create import in_quotes, key_source
from services.yaml.errors import Code, YamlError
from services.yaml.fragment import read_fragment
from services.yaml.path import Index, Key, Step, show_path
from services.yaml.schema import data_of, resolve_scalar
from services.yaml.syntax.events import MAPPING, SCALAR, SEQUENCE, Document
from services.yaml.tree import PathNotFound, Tree
from services.yaml.values import pick_document, read_tree, set_at

_BOOLEAN_TO_FEW = frozenset(["y", "n"])
_WITHOUT_POINT = re.compile(r"^(-?\d+)(e)")
_RESOLVER = Resolver()
_DATE = re.compile(r"\d{4}-\d\d-\d\d(?:[Tt ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[-+]\d\d:\d\d)?)?\Z")
"""Dates and times, which YAML 1.1 reads as such without quotes, and YAML 1.2 as text."""
_NOT_IN_LINES = re.compile(r"[^\n\t\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
"""Characters that are only written as escapes."""
_TAGS = {str: "str", int: "int", float: "float", bool: "bool", type(None): "null"}


def merge(text: str, values: Mapping[str, object]) -> str:
    """Return the mapping `text` with `values` set by key; null removes a key. Raises YamlError."""
    tree = read_tree(text)
    for given, value in values.items():
        found = pick_document(tree, 0, Code.NOT_APPLICABLE)
        place = None
        name = _as_there(tree, found, given, values)
        with contextlib.suppress(PathNotFound):
            place = tree.find(found, [Key(name, quoted=True)]) if found else None
        if found and place and value is None:
            tree = restructure.delete(tree, found, place, tree.find(found, []))
        elif value is not None:
            path = f"[{json.dumps(name, ensure_ascii=False)}]"
            tree = (
                set_at(tree, path, written(value)) if place is None else _changed(tree, [Key(name, quoted=True)], value)
            )
    return tree.text


def _changed(tree: Tree, steps: list[Step], value: object) -> Tree:
    """Return the tree with an existing value changed, in the style that it has and with the comments in it."""
    document = tree.stream.documents[0]
    place = tree.find(document, steps)
    node = place.node
    if reads_so(tree, node, value):
        return tree
    kind = tree.stream.events[node][0]
    if isinstance(value, dict) and value and kind == MAPPING and "<<" not in (keys := tree.keys(node)):
        for key, each in value.items():
            at = [*steps, Key(key, quoted=True)]
            tree = _changed(tree, at, each) if key in keys else set_at(tree, show_path(at), written(each))
        for key in keys.keys() - value.keys():
            tree = _deleted(tree, [*steps, Key(key, quoted=True)])
        return tree
    if isinstance(value, list) and value and kind == SEQUENCE and (changed := _items(tree, steps, node, value)):
        return changed
    return set_at(tree, show_path(steps), styled(tree, node, value))


def in_block(value: object) -> str:
    """Write JSON data as YAML in block style."""
    match value:
        case dict() if value:
            entries = []
            for key, each in value.items():
                text, nested = in_block(each), isinstance(each, dict | list) and each
                entries.append(f"{written(str(key))}:{_indented(text) if nested else f' {text}'}")
            return "\n".join(entries)
        case list() if value:
            return "\n".join("- " + in_block(each).replace("\n", "\n  ") for each in value)
    return written(value)


def _indented(text: str) -> str:
    return "".join(f"\n  {line}" for line in text.split("\n"))


def _items(tree: Tree, steps: list[Step], node: int, value: list[object]) -> Tree | None:
    """Change, delete and append items of a sequence; None if others would have to be inserted between them."""
    old = [written(data_of(tree, child.node)) for child in tree.children(node)]
    operations = SequenceMatcher(None, old, list(map(written, value)), autojunk=False).get_opcodes()
    if not old or any(after - begin > till - first and till < len(old) for _, first, till, begin, after in operations):
        return None
    for _, first, till, begin, after in reversed(operations):
        for number in reversed(range(first, till)):
            at: list[Step] = [*steps, Index(number)]
            stays = number - first < after - begin
            tree = _changed(tree, at, value[begin + number - first]) if stays else _deleted(tree, at)
        for each in value[begin + till - first : after]:
            document = tree.stream.documents[0]
            fragment = read_fragment(written(each), document.tags)
            tree = restructure.append(tree, document, tree.find(document, steps), fragment)
    return tree


def _deleted(tree: Tree, steps: list[Step]) -> Tree:
    document = tree.stream.documents[0]
    return restructure.delete(tree, document, tree.find(document, steps), tree.find(document, steps[:-1]))


def styled(tree: Tree, node: int, value: object) -> str:
    """Write data in the style of the node that it replaces, if it can be written so."""
    _, style, text, _, tag = tree.stream.events[node]
    if isinstance(value, list) and value and tree.is_block_collection(node) and tree.is_sequence(node):
        return "\n".join(f"- {written(each)}" for each in value)
    if not isinstance(value, str) or tag is not None:
        return written(value)
    lines = value.removesuffix("\n").split("\n")
    end = "" if value.endswith("\n") else "-"
    source = {
        "'": "'" + value.replace("'", "''") + "'",
        '"': in_quotes(value),
        "|": "\n".join([f"|{end}", *(f"  {line}" if line else "" for line in lines)]),
        ">": "\n".join([f">{end}", *(part for line in lines for part in (f"  {line}", ""))][:-1]),
        ":": value if _DATE.match(text) and _DATE.match(value) else "",
    }.get(style, "")
    if source and _NOT_IN_LINES.search(value) is None:
        with contextlib.suppress(YamlError):
            read = read_tree(f"a: {source}\n")
            if data_of(read, read.stream.documents[0].event + 1) == {"a": value}:
                return source
    return written(value)


def _as_there(tree: Tree, document: Document | None, name: str, given: Container[str]) -> str:
    """Return a key in the Unicode form that the file uses, unless `given` contains that form as another key."""
    root = tree.find(document, []).node if document else -1
    if document is None or tree.stream.events[root][0] != MAPPING or name in (keys := tree.keys(root)):
        return name
    wanted = unicodedata.normalize("NFC", name)
    same = (key for key in keys if unicodedata.normalize("NFC", key) == wanted and key not in given)
    return next(same, name)


def written(value: object) -> str:
    """Write JSON data as YAML on one line, text without quotes if it would be read as the same."""
    match value:
        case str():
            return key_source(Key(value, quoted=True), flow=True, quoted=value.lower() in _BOOLEAN_TO_FEW)
        case list():
            return f"[{', '.join(map(written, value))}]"
        case dict():
            entries = (f"{written(str(key))}: {written(each)}" for key, each in value.items())
            return f"{{{', '.join(entries)}}}"
        case float() if not math.isfinite(value):
            return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
        case float():
            # YAML 1.1 recognizes a number with an exponent only by its point.
            return _WITHOUT_POINT.sub(r"\1.0\2", json.dumps(value))
        case _:
            return json.dumps(value)


def reads_so(tree: Tree, node: int, value: object) -> bool:
    """True if a node already means this data, in YAML 1.1 as well."""
    if written(data_of(tree, node)) != written(value):
        return False
    stream = tree.stream
    for kind, style, text, _, tag in stream.events[node : stream.after(node)]:
        if kind == SCALAR and style == ":" and tag is None:
            if _DATE.match(text) and isinstance(resolve_scalar(style, text, tag), str):
                # The user's own style for dates.
                continue
            older = _RESOLVER.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]  # no types in its stubs
            if older != f"tag:yaml.org,2002:{_TAGS[type(resolve_scalar(style, text, tag))]}":
                return False
    return True
