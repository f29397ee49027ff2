"""`describe`, and how the composite tools are listed: the steps of a surface as clients see them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from proto.json_types import JsonObject
from proto.operation import REFERENCES, Access, Operation
from proto.suggestions import did_you_mean
from services.front.surfaces.finding import absent, is_mounted
from services.front.surfaces.steps import DESCRIBE, DOCUMENTS, EXECUTE, QUERY, SESSION, Steps

FOUND = 12
"""Maximum number of ops that a search by words returns."""


UNLIKELY = "perhaps no op does this; these are the nearest"


def describe(
    steps: Steps, target: str | None, words: str = "", ranked: Sequence[str] | None = None, *, is_likely: bool = True
) -> JsonObject:
    """Return the result of the op `describe`; an unknown target is also a result.

    Args:
        ranked: the names that a better search found by `words`, best first.
        is_likely: whether the first of them is likely to do the task.
    """
    if target is None and words:
        found_by_words = [
            (name, steps.find(name)) for name in (steps.index.ranked(words) if ranked is None else ranked)[:FOUND]
        ]
        said, near = absent(words), "" if is_likely else UNLIKELY
        ops = [
            {"op": name, "in": steps.spoken(step[0].tool), "about": steps.spoken(about(step[1]))}
            for name, step in found_by_words
            if step and (not said or is_mounted(step[1]))
        ]
        note = said or near
        return {"ops": ops, "note": steps.spoken(note)} if note else {"ops": ops}
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
    names = {} if steps.surface in REFERENCES else operation.params.common
    return {
        "op": target if steps.surface in REFERENCES else operation.name,
        "category": category.value if steps.surface in REFERENCES else category.tool,
        "readOnly": operation.access is Access.READ,
        "description": steps.spoken(operation.description),
        "paramsSchema": steps.spoken_in(_whole(operation, names)),
    }


def _whole(operation: Operation[object], names: Mapping[str, str]) -> JsonObject:
    """Return the complete schema of the parameters, with `names` replacing some of their names."""
    schema = {key: value for key, value in operation.input_schema.items() if key != "description"}
    properties = {names.get(name, name): each for name, each in schema.get("properties", {}).items()}
    required = [names.get(name, name) for name in schema.get("required", ())]
    return {**schema, "properties": properties, **({"required": required} if required else {})}


_REACH = (
    f' Ops are those of every service: {{"op": "{DESCRIBE}", "params": {{"words": "…"}}}} finds them by words, '
    f'{{"target": OP}} gives one\'s parameters. Look before the first use. An answer of more than max_tokens (2000) is '
    "cut, and says how to go on."
)
_PARAMETERS = f' {{"op": "{DESCRIBE}", "params": {{"target": OP}}}} gives an op\'s parameters.'


def shown(operation: Operation[object], surface: str, steps: Steps) -> tuple[str, JsonObject]:
    """Return the description and input schema of a tool on a surface."""
    description = " ".join(operation.description.split())
    of_documents = surface == DOCUMENTS
    if operation.name == QUERY:
        listed = {"steps": _steps(steps.query if of_documents else None, ["op"])}
        if not of_documents:
            listed["max_tokens"] = {"type": "integer", "default": 2000}
        description, schema = description + (_PARAMETERS if of_documents else _REACH), _object(listed, ["steps"])
    elif operation.name == EXECUTE:
        changes = _steps(steps.execute if of_documents else None, ["op", "params"])
        goes_on = {"type": "boolean", "default": False}
        description += "" if of_documents else f" `{DESCRIBE}` in `{QUERY}` lists the ops."
        schema = _object({"operations": changes, "continueOnError": goes_on}, ["operations"])
    elif operation.name == SESSION:
        action = {"type": "string", "enum": list(steps.session)}
        schema = _object({"action": action, "params": {"type": "object"}}, ["action"])
    else:
        schema = operation.input_schema
    return steps.spoken(description), steps.spoken_in(schema)


def _steps(ops: Mapping[str, object] | None, required: list[str]) -> JsonObject:
    op: JsonObject = {"type": "string"} if ops is None else {"type": "string", "enum": list(ops)}
    return {"type": "array", "items": _object({"op": op, "params": {"type": "object"}}, required)}


def _object(properties: JsonObject, required: list[str]) -> JsonObject:
    # Not explained here: the tool's description does, and a model reads this in every conversation.
    return {"type": "object", "properties": properties, "required": required}


def about(operation: Operation[object]) -> str:
    """Return the purpose of the operation: the first sentence of its description."""
    return re.split(r"(?<=[^.][.;])\s", " ".join(operation.description.split()), maxsplit=1)[0].rstrip(".;")
