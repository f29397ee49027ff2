"""`describe`, and how the composite tools are listed: a surface's steps as a client reads them.

By words, operations are ranked by BM25 (Robertson and Zaragoza, 2009) over names, titles and descriptions.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping

from proto.json_types import JsonObject
from proto.near import did_you_mean
from proto.operation import Access, Operation
from proto.surfaces.steps import DESCRIBE, DOCUMENTS, QUERY, Steps

FOUND = 12
"""Ops that a search by words answers at most."""


def describe(steps: Steps, target: str | None, words: str = "") -> JsonObject:
    """The answer to the op `describe`; an unknown target is an answer, too."""
    if target is None and words:
        every = {name: (category, op) for category, ops in steps.ops.items() for name, op in ops.items()}
        names = ranked(words, {name: op for name, (_, op) in every.items()})[:FOUND]
        return {"ops": [{"op": name, "in": every[name][0].value, "about": about(every[name][1])} for name in names]}
    if target is None:
        listed: JsonObject = {f"{category}_ops": list(ops) for category, ops in steps.ops.items()}
        if steps.surface == DOCUMENTS:
            return listed
        return {**listed, "more": 'params {"words": "…"} finds ops by words, {"target": OP} has one\'s parameters'}
    found = steps.find(target)
    if found is None:
        near = did_you_mean(target, steps.names())
        return {"error": f"Unknown operation: {target[:100]}{near}", "available": steps.names()}
    category, operation = found
    return {
        "op": target,
        "category": category.value,
        "readOnly": operation.access is Access.READ,
        "description": operation.description,
        "paramsSchema": {key: value for key, value in operation.input_schema.items() if key != "description"},
    }


_REACH = (
    f' Ops are those of every service: {{"op": "{DESCRIBE}", "params": {{"words": "…"}}}} finds them by words, '
    f'{{"target": OP}} gives one\'s parameters. Look before the first use. An answer of more than max_tokens (2000) is '
    "cut, and says how to go on."
)
_PARAMETERS = f' {{"op": "{DESCRIBE}", "params": {{"target": OP}}}} gives an op\'s parameters.'


def shown(operation: Operation[object], surface: str, steps: Steps) -> tuple[str, JsonObject]:
    """The description and the input schema of a tool on a surface."""
    description = " ".join(operation.description.split())
    of_documents = surface == DOCUMENTS
    match operation.name:
        case "query":
            listed = {"steps": _steps(steps.query if of_documents else None, ["op"])}
            if not of_documents:
                listed["max_tokens"] = {"type": "integer", "default": 2000}
            return description + (_PARAMETERS if of_documents else _REACH), _object(listed, ["steps"])
        case "execute":
            changes = _steps(steps.execute if of_documents else None, ["op", "params"])
            goes_on = {"type": "boolean", "default": False}
            text = description if of_documents else f"{description} `{DESCRIBE}` in `{QUERY}` lists the ops."
            return text, _object({"operations": changes, "continueOnError": goes_on}, ["operations"])
        case "session":
            action = {"type": "string", "enum": list(steps.session)}
            return description, _object({"action": action, "params": {"type": "object"}}, ["action"])
        case _:
            return description, operation.input_schema


def _steps(ops: Mapping[str, object] | None, required: list[str]) -> JsonObject:
    op: JsonObject = {"type": "string"} if ops is None else {"type": "string", "enum": list(ops)}
    return {"type": "array", "items": _object({"op": op, "params": {"type": "object"}}, required)}


def _object(properties: JsonObject, required: list[str]) -> JsonObject:
    # The tool's description has explained them: a model reads this with every conversation.
    return {"type": "object", "properties": properties, "required": required}


def about(operation: Operation[object]) -> str:
    """What the operation is for: the first sentence of its description."""
    return re.split(r"(?<=[^.][.;])\s", " ".join(operation.description.split()), maxsplit=1)[0].rstrip(".;")


_K1, _B = 1.2, 0.75
_WORD = re.compile(r"[a-z]+|[0-9]+")
_ENDING = re.compile(r"(?<=[a-z]{3})(?:ies|ing|ed|es|s|e|y)$")
_NAMED = 2
"""How often a word of the name counts beside one of the description."""

_STOP = frozenset(
    _WORD.findall(
        "a about all an and are as at be before but by do does for from had has have how i if in into is it its me my"
        " no not of on or our shall should so some that the their them then these they this those to was were what when"
        " where which who why will with would you your"
    )
)


def ranked(words: str, operations: Mapping[str, Operation[object]]) -> list[str]:
    """The names of the operations that have any of the words, the most fitting first."""
    texts = {
        name: Counter(_terms(f"{f'{name} {op.title} ' * _NAMED}{op.description}")) for name, op in operations.items()
    }
    mean = sum(text.total() for text in texts.values()) / (len(texts) or 1)
    found = Counter(term for text in texts.values() for term in text)
    asked = set(_terms(words))

    def score(text: Counter[str]) -> float:
        length = _K1 * (1 - _B + _B * text.total() / mean)
        return sum(
            math.log(1 + (len(texts) - found[term] + 0.5) / (found[term] + 0.5)) * text[term] * (_K1 + 1)
            / (text[term] + length)
            for term in asked & text.keys()
        )  # fmt: skip

    scores = {name: score(text) for name, text in texts.items()}
    return sorted((name for name in scores if scores[name] > 0), key=lambda name: -scores[name])


def _terms(text: str) -> list[str]:
    return [_ENDING.sub("", word) for word in _WORD.findall(text.lower()) if word not in _STOP]
