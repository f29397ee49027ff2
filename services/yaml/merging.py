"""Keys of a mapping set to data: written in YAML as a person would, what stands there already left as it is."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping

from services.yaml import restructure
from services.yaml.create import key_source
from services.yaml.errors import Code
from services.yaml.path import Key
from services.yaml.schema import data_of
from services.yaml.tree import NotThere
from services.yaml.values import pick_document, read_tree, set_at

_MEANS_MORE = frozenset(["y", "n", "yes", "no", "on", "off"])
"""Read as true and false by YAML 1.1, which many readers of front matter are."""


def merge(text: str, values: Mapping[str, object]) -> str:
    """The mapping `text` with `values` by key; null removes a key. Raises YamlError."""
    tree = read_tree(text)
    for name, value in values.items():
        found = pick_document(tree, 0, Code.NOT_APPLICABLE)
        place = None
        with contextlib.suppress(NotThere):
            place = tree.find(found, [Key(name, quoted=True)]) if found else None
        if found and place and value is None:
            tree = restructure.delete(tree, found, place, tree.find(found, []))
        elif value is not None and (place is None or written(data_of(tree, place.node)) != written(value)):
            tree = set_at(tree, f"[{json.dumps(name, ensure_ascii=False)}]", written(value))
    return tree.text


def written(value: object) -> str:
    """Data of JSON as YAML on one line, text without quotes where that is read as the same."""
    match value:
        case str():
            return key_source(Key(value, quoted=True), flow=True, quoted=value.lower() in _MEANS_MORE)
        case list():
            return f"[{', '.join(map(written, value))}]"
        case dict():
            entries = (f"{written(str(key))}: {written(each)}" for key, each in value.items())
            return f"{{{', '.join(entries)}}}"
        case _:
            return json.dumps(value)
