"""Steps of composite tools, and what `$prev` makes of the result before."""

from __future__ import annotations

import functools
import json
from typing import Any

import msgspec

from proto import ops
from proto.errors import InvalidParams
from proto.validation import exceeded
from services.front.composite.plan import plan, resolve
from services.front.surfaces.describe import describe
from services.front.surfaces.steps import Category, Steps
from tests.fuzz.coverage import parted


def _seed(steps: object, previous: object) -> bytes:
    return json.dumps(steps).encode() + b"\0" + json.dumps(previous).encode()


_HITS = {"results": [{"hash": "x" * 64, "path": "a.b[0]", "n": 3}], "total": 1}

SEEDS = [
    _seed([{"op": "search", "query": "x"}, {"op": "get", "hash": "$prev.results[0].hash"}], _HITS),
    _seed([{"op": "graph_neighbours", "params": {"id": "$prev.results[0].path", "depth": "$prev.total"}}], _HITS),
    _seed([{"op": "yaml_set", "params": {"file": "a", "path": "b", "value": "$prev"}}], "text"),
    _seed([{"op": "documents_grep", "pattern": "a", "limit": None}, {"op": "describe", "target": "$prev"}], [[1]]),
    _seed([{"op": "documents_search", "query": "x"}, {"op": "get", "hash": "$prev.results", "uyy": 1}], _HITS),
    _seed([{"op": "query"}, {"op": 1}, {"params": []}, {}], None),
    _seed([{"op": "rename_many", "changes": ["$prev[0][999999999]", "$prev.", "$prev..", "$prev[-1]"]}], [["x"]]),
]


@functools.cache
def _steps() -> dict[str, Steps]:
    table = ops.load()
    return {surface: Steps(surface, table) for surface in ("all", "documents")}


def read(data: bytes) -> None:
    """Steps, and the result that they follow."""
    given, result = parted(data, 2)
    if exceeded(given) or exceeded(result):
        return
    previous: Any = None
    try:
        steps = msgspec.json.decode(given, type=list[dict[str, Any]])
        previous = msgspec.json.decode(result or b"null")
    except (msgspec.DecodeError, UnicodeDecodeError):
        resolve(given.decode("utf-8", "replace"), _HITS)
        return
    if not steps:
        return
    for surface in _steps().values():
        for tool in (Category.QUERY, Category.EXECUTE):
            try:
                planned = plan(tool, surface, steps, "steps", chained=tool is Category.QUERY)
                for step in planned:
                    step.params(previous)
            except InvalidParams as error:
                msgspec.json.encode(error.failure)
        try:
            describe(surface, str(steps[0].get("op"))[:500])
        except InvalidParams:
            continue
