"""`describe`, and how the composite tools are listed: a surface's steps as a client reads them."""

from __future__ import annotations

from proto.json_types import JsonObject
from proto.operation import Access, Operation
from proto.surfaces.steps import DESCRIBE, DOCUMENTS, QUERY, Steps


def describe(steps: Steps, target: str | None) -> JsonObject:
    """The answer to the op `describe`; an unknown target is an answer, too."""
    if target is None:
        return {f"{category}_ops": list(ops) for category, ops in steps.by_category()}
    found = steps.find(target)
    if found is None:
        return {"error": f"Unknown operation: {target[:100]}", "available": steps.names()}
    category, operation = found
    return {
        "op": target,
        "category": category.value,
        "readOnly": operation.access is Access.READ,
        "description": operation.description,
        "paramsSchema": {key: value for key, value in operation.input_schema.items() if key != "description"},
    }


_REACH = (
    f' Ops are those of every service: {{"op": "{DESCRIBE}"}} lists them, with params {{"target": OP}} it gives '
    "one's parameters. Look before the first use."
)
_PARAMETERS = f' {{"op": "{DESCRIBE}", "params": {{"target": OP}}}} gives an op\'s parameters.'


def shown(operation: Operation[object], surface: str, steps: Steps) -> tuple[str, JsonObject]:
    """The description and the input schema of a tool on a surface."""
    description = " ".join(operation.description.split())
    of_documents = surface == DOCUMENTS
    match operation.name:
        case "query":
            text = description + (_PARAMETERS if of_documents else _REACH)
            items = _step(list(steps.query) if of_documents else None, required=["op"])
            return text, _object({"steps": {"type": "array", "items": items}}, ["steps"])
        case "execute":
            items = _step(list(steps.execute) if of_documents else None, required=["op", "params"])
            listed = {"type": "array", "items": items}
            goes_on = {"type": "boolean", "default": False}
            text = description if of_documents else f"{description} `{DESCRIBE}` in `{QUERY}` lists the ops."
            return text, _object({"operations": listed, "continueOnError": goes_on}, ["operations"])
        case "session":
            action = {"type": "string", "enum": list(steps.session)}
            return description, _object({"action": action, "params": {"type": "object"}}, ["action"])
        case _:
            return operation.description, {k: v for k, v in operation.input_schema.items() if k != "description"}


def _step(ops: list[str] | None, *, required: list[str]) -> JsonObject:
    op: JsonObject = {"type": "string"} if ops is None else {"type": "string", "enum": ops}
    return {"type": "object", "properties": {"op": op, "params": {"type": "object"}}, "required": required}


def _object(properties: JsonObject, required: list[str]) -> JsonObject:
    # The tool's description has explained them: a model reads this with every conversation.
    return {"type": "object", "properties": properties, "required": required}
