"""The edits that merge a mapping into the mapping at a path.

They are those that a person would make: a key that is there keeps its place, comments and style, a mapping is merged
key by key, and a value that already means the same is left as it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from services.yaml.errors import Code, NotApplicable
from services.yaml.merging import in_block, reads_so, styled, written
from services.yaml.operations import AppendEdit, DeleteEdit, Edit, SetEdit
from services.yaml.path import parse_path
from services.yaml.schema import MAX_DEPTH, resolve_scalar
from services.yaml.syntax.events import ALIAS, MAPPING, SCALAR, SEQUENCE
from services.yaml.tree import PathNotFound, Tree
from services.yaml.values import merged, pick_document

MAX_EDITS = 1000

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_NOWHERE = -1
"""Stands for the node of a mapping that does not exist yet."""


_CORE = re.compile(r"tag:yaml\.org,2002:(?:str|int|float|bool|null|map|seq)")


def lost_as_data(tree: Tree) -> str:
    """Return what a file has that data cannot hold, for the end of a message; "" if there is nothing."""
    events = tree.stream.events
    if (count := len(tree.stream.documents)) > 1:
        return f"has {count} documents; give a file with one"
    for kind, _, _, _, tag in events:
        if kind in (SCALAR, MAPPING, SEQUENCE) and tag and tag != "!" and not _CORE.fullmatch(tag):
            return f"has the tag {tag}, which a merge would lose"
    for number, (kind, *_) in enumerate(events):
        for place in tree.children(number) if kind == MAPPING else ():
            key, style, text, _, tag = events[place.key]
            if key != SCALAR or not isinstance(resolve_scalar(style, text, tag), str):
                return f"has the key {tree.key_text(place.key)[:80]}, which is no text"
    return ""


@dataclass(frozen=True, slots=True)
class Merge:
    """What to merge, where, and how."""

    values: Mapping[str, object]
    path: str
    append: bool
    remove_nulls: bool

    def edits(self, tree: Tree, document: int, *, json_file: bool) -> list[Edit]:
        """Return the edits in order. Raises YamlError (-32002, -32003) if there is no mapping to merge into."""
        _check_depth(self.values, 0)
        found = list(_Edits(tree, self, json_file).all(document))
        if len(found) > MAX_EDITS:
            raise NotApplicable(f"this merge would make {len(found)} edits, more than {MAX_EDITS}: merge it in parts")
        return found


class _Edits:
    def __init__(self, tree: Tree, merge: Merge, json_file: bool) -> None:
        self._tree = tree
        self._merge = merge
        self._json_file = json_file

    def all(self, document: int) -> Iterator[Edit]:
        path = self._merge.path
        steps = parse_path(path, Code.NOT_APPLICABLE)
        found = pick_document(self._tree, document, Code.NOT_APPLICABLE)
        node, is_flow = _NOWHERE, False
        if found is not None:
            try:
                node = self._tree.find(found, steps).node
            except PathNotFound as fault:
                if not fault.creatable:
                    raise NotApplicable(f"cannot merge into {path!r}: {fault.reason}") from None
                is_flow = self._is_flow(fault.parent.node)
        if node != _NOWHERE:
            self._refuse_alias(node, path)
            if self._kind(node) != MAPPING:
                if not self._is_null(node):
                    raise NotApplicable(f"{path or 'the document'} is not a mapping: merge into one, or set it")
                if path:
                    # A key without a value, which becomes a mapping.
                    yield SetEdit(path, self._new(self._without_nulls(self._merge.values), is_flow=False))
                    return
                node = _NOWHERE
        yield from self._into(node, path, self._merge.values, is_flow=is_flow)

    def _into(self, mapping: int, path: str, values: Mapping[str, object], *, is_flow: bool) -> Iterator[Edit]:
        """Yield the edits that merge values into the mapping at a path."""
        keys = {} if mapping == _NOWHERE else self._tree.keys(mapping)
        is_flow = self._is_flow(mapping) if mapping != _NOWHERE else is_flow
        for name, value in values.items():
            at = _below(path, name)
            place = keys.get(name)
            if value is None and self._merge.remove_nulls:
                if place is not None:
                    yield DeleteEdit(at)
            elif place is None:
                self._refuse_hiding(mapping, name, value, at)
                yield SetEdit(at, self._new(self._without_nulls(value), is_flow=is_flow))
            else:
                yield from self._change(place.node, at, value, is_flow=is_flow)

    def _change(self, node: int, at: str, value: object, *, is_flow: bool) -> Iterator[Edit]:
        """Yield the edits that make the existing value at a path another one, or merge both."""
        kind = self._kind(node)
        if isinstance(value, Mapping):
            self._refuse_alias(node, at)
            if kind == MAPPING:
                yield from self._into(node, at, value, is_flow=is_flow)
                return
        elif isinstance(value, list) and self._merge.append:
            self._refuse_alias(node, at)
            if kind == SEQUENCE:
                for each in value:
                    yield AppendEdit(at, self._new(self._without_nulls(each), is_flow=self._is_flow(node)))
                return
        value = self._without_nulls(value)
        self._refuse_other_kind(node, kind, value, at)
        if kind == ALIAS or not reads_so(self._tree, node, value):
            is_collection = isinstance(value, dict | list)
            keeps_style = isinstance(value, list) and kind == SEQUENCE
            is_new = self._json_file or (is_collection and not keeps_style)
            yield SetEdit(at, self._new(value, is_flow=is_flow) if is_new else styled(self._tree, node, value))

    def _new(self, value: object, *, is_flow: bool) -> str:
        if self._json_file:
            try:
                return json.dumps(value, ensure_ascii=False, allow_nan=False)
            except ValueError:
                raise NotApplicable("JSON has no infinite numbers and no NaN") from None
        return written(value) if is_flow else in_block(value)

    def _without_nulls(self, value: object) -> object:
        """Return a new value without the keys that a null is to remove."""
        if self._merge.remove_nulls and isinstance(value, Mapping):
            return {key: self._without_nulls(each) for key, each in value.items() if each is not None}
        return value

    def _kind(self, node: int) -> int:
        return self._tree.stream.events[node][0]

    def _is_flow(self, node: int) -> bool:
        return self._kind(node) in (MAPPING, SEQUENCE) and not self._tree.is_block_collection(node)

    def _is_null(self, node: int) -> bool:
        kind, style, text, _, tag = self._tree.stream.events[node]
        return kind == SCALAR and resolve_scalar(style, text, tag) is None

    def _refuse_other_kind(self, node: int, kind: int, value: object, at: str) -> None:
        """Refuse to make a collection with an anchor something else, since aliases stand for it elsewhere."""
        anchor = self._tree.stream.events[node][3]
        same = isinstance(value, Mapping) if kind == MAPPING else isinstance(value, list)
        if anchor and kind in (MAPPING, SEQUENCE) and not same:
            raise NotApplicable(f"{at} has the anchor &{anchor}, and would no longer be what its aliases stand for")

    def _refuse_alias(self, node: int, at: str) -> None:
        if self._kind(node) == ALIAS:
            raise NotApplicable(f"{at or 'the document'} is an alias: merge into its anchor, or set another value here")

    def _refuse_hiding(self, mapping: int, name: str, value: object, at: str) -> None:
        """Refuse a mapping for a key that is only merged in by `<<`: it would hide the merged one's other keys."""
        if mapping == _NOWHERE or not isinstance(value, Mapping):
            return
        if any(name in self._tree.keys(each) for each in merged(self._tree, mapping, set())):
            raise NotApplicable(f"{at} is only merged in by <<: merge into its anchor, or set all of it")


def _check_depth(value: object, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise NotApplicable(f"the values are nested more than {MAX_DEPTH} levels deep")
    for each in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        _check_depth(each, depth + 1)


def _below(path: str, name: str) -> str:
    """Return the path of a key, quoted if it might be read as anything but this text."""
    if _PLAIN.fullmatch(name) and isinstance(resolve_scalar(":", name, None), str):
        return f"{path}.{name}" if path else name
    return f"{path}[{json.dumps(name, ensure_ascii=False)}]"
