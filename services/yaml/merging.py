"""Sets keys of a mapping to data, written in YAML as a person would, and keeps existing equal values untouched.

Many readers of front matter use YAML 1.1, so values are written to mean the same in 1.1 and 1.2.
"""

from __future__ import annotations

import contextlib
import json
import re
import unicodedata
from collections.abc import Container, Mapping

import yaml
from yaml.resolver import Resolver

from linckia.services.yaml import restructure
from linckia.services.yaml.create import key_source
from linckia.services.yaml.errors import Code
from linckia.services.yaml.path import Key
from linckia.services.yaml.schema import data_of, resolve_scalar
from linckia.services.yaml.syntax.events import MAPPING, SCALAR, Document
from linckia.services.yaml.tree import PathNotFound, Tree
from linckia.services.yaml.values import pick_document, read_tree, set_at

_BOOLEAN_TO_FEW = frozenset(["y", "n"])
_WITHOUT_POINT = re.compile(r"^(-?\d+)(e)")
_RESOLVER = Resolver()
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
        elif value is not None and (place is None or not _reads_so(tree, place.node, value)):
            tree = set_at(tree, f"[{json.dumps(name, ensure_ascii=False)}]", written(value))
    return tree.text


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
        case float():
            # YAML 1.1 recognizes a number with an exponent only by its point.
            return _WITHOUT_POINT.sub(r"\1.0\2", json.dumps(value))
        case _:
            return json.dumps(value)


def _reads_so(tree: Tree, node: int, value: object) -> bool:
    """True if a node already means this data, in YAML 1.1 as well."""
    if written(data_of(tree, node)) != written(value):
        return False
    stream = tree.stream
    for kind, style, text, _, tag in stream.events[node : stream.after(node)]:
        if kind == SCALAR and style == ":" and tag is None:
            older = _RESOLVER.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]  # no types in its stubs
            if older != f"tag:yaml.org,2002:{_TAGS[type(resolve_scalar(style, text, tag))]}":
                return False
    return True
