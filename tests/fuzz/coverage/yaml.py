"""YAML: documents are read, changed and checked by paths; the text after a change is read as the tree that made it."""

from __future__ import annotations

import contextlib
import json

from services.yaml import comments, schema
from services.yaml.errors import Code, YamlError
from services.yaml.files import read_source
from services.yaml.operations import AppendEdit, CommentEdit, DeleteEdit, Edit, RenameEdit, SetEdit
from services.yaml.tree import Tree
from services.yaml.values import get_at, locate, read_tree
from services.yaml.yaml_files import apply
from tests.fuzz.coverage import parted

SEEDS = [
    b"a: 1 # c\nb:\n  - x\n  - y: [1, {k: v}]\n    z: 'q'\n\0b[1].y\0[2]\0",
    b'--- !t\n? a\n: "b\\n  c"\n? |\n  key\n: >-\n  folded\n   more\n\n  text\n...\n\0a\0new\0',
    b"%TAG !e! tag:e,1:\n---\n- !e!x &a 1\n- *a\n- {a, b: , ? c : d}\n- [a: b, [c]: d]\n\x00[0]\x00'x'\x00",
    b"m: &m\n  k: plain\n   text\nn:\n- <<: *m\n  t: |+\n    x\n\n- - -\n    - y\n\0n[0].t\0|\n  y\0",
    b'{"a": [1, true, null, "x\\u00e9"]}\0a[0]\0{"b": 2}\0{"type": "object", "properties": {"a": {"type": "array"}}}',
    b"\xef\xbb\xbfa: 1\r\nb: 2\r\n\0c.d\0x: 1\0",
    b"a: &a [*a]\n\0a\x000\0{}",
    b"\xff\xfea\x00:\x00 \x001\x00",
]


def read(data: bytes) -> None:
    """A file, a path, a value and a schema."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        with contextlib.suppress(YamlError):
            read_tree(read_source(data).text)
        return
    whole, at, new, against = parted(data, 4)
    path, value = at.decode("utf-8", "replace"), new.decode("utf-8", "replace")
    try:
        source = read_source(whole)
        tree = read_tree(source.text)
    except YamlError:
        return
    assert source.encode(tree.text) == whole
    _looked_at(tree, path, against)
    edits: list[Edit] = [
        SetEdit(path=path, value=value),
        AppendEdit(path=path, value=value),
        RenameEdit(path=path, key=value),
        DeleteEdit(path=path),
        CommentEdit(path=path, above=value, beside=value[:20]),
    ]
    for edit in edits:
        try:
            after = apply(tree, edit, 0, json_file=False)
        except YamlError:
            continue
        assert _events(read_tree(after.text)) == _events(after), edit
        if isinstance(edit, SetEdit):
            get_at(after, path)


def _events(tree: Tree) -> list[object]:
    return [(kind, style, value, anchor, tag) for kind, style, value, anchor, tag in tree.stream.events]


def _looked_at(tree: Tree, path: str, against: bytes) -> None:
    with contextlib.suppress(YamlError):
        get_at(tree, path)
        comments.read_comments(tree, *locate(tree, path, 0, Code.NOT_FOUND))
    try:
        wanted = json.loads(against or b"{}")
    except (ValueError, RecursionError):
        return
    if isinstance(wanted, dict) and tree.stream.documents:
        with contextlib.suppress(YamlError):
            schema.validate(tree, tree.stream.documents[0], wanted)
