"""Completion of arguments of prompts and resource templates.

An operation may name another one that completes its arguments (`completion=`), which must admit the front as its
caller.  Without one, an argument with an `enum` is completed from it, and other arguments have no suggestions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import structs

from proto.errors import InvalidParams
from proto.json_types import JsonObject
from proto.operation import Operation
from proto.ops import Table
from proto.origin import Origin
from proto.wire.front import SERVICE
from services.runtime.dispatch import Dispatcher

MAX_VALUES = 100
"""The protocol's limit for one completion."""


async def complete(
    table: Table,
    dispatcher: Dispatcher,
    operation: Operation[object],
    argument: str,
    value: str,
    context: Mapping[str, str],
    origin: Origin,
) -> list[str]:
    """Return values of `argument` that start with `value` or match it, the most likely first.

    Args:
        context: the arguments that were completed before.
        origin: who asks.

    Raises:
        InvalidParams: the operation has no such argument.
        LinckiaError: the completing operation failed.
    """
    schema = operation.input_schema
    properties: JsonObject = schema.get("properties", {})
    if argument not in properties:
        names = ", ".join(properties) or "none"
        text = f"{operation.name} has no argument `{argument}`; its arguments: {names}"
        raise InvalidParams(text, field="argument.name")
    listed = listed_values(properties[argument], schema.get("$defs", {}))
    # The provider is not in the table if its service is not served.
    provider = table.get(operation.completion or "")
    if listed or provider is None:
        return [v for v in listed if v.lower().startswith(value.lower())]
    params = provider.parse({"argument": argument, "value": value, "context": dict(context)})
    found = await dispatcher.call(provider, params, origin=structs.replace(origin, caller=SERVICE, key=""))
    return [str(v) for v in found] if isinstance(found, list) else []


def listed_values(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> list[str]:
    """Return the values that a schema lists (`enum`, also behind a reference or in a union)."""
    if "$ref" in schema:
        return listed_values(definitions.get(schema["$ref"].rsplit("/", 1)[-1], {}), definitions)
    if "anyOf" in schema:
        return [value for branch in schema["anyOf"] for value in listed_values(branch, definitions)]
    return [str(value) for value in schema.get("enum", ()) if value is not None]


def completion_result(values: list[str]) -> JsonObject:
    """Return the result of `completion/complete`, in wire form."""
    return {"completion": {"values": values[:MAX_VALUES], "total": len(values), "hasMore": len(values) > MAX_VALUES}}
