"""Completion of arguments of prompts and resource templates.

An operation may name another that completes (`completion=`), which must admit the front as its caller; without one, an
argument with listed values is completed from these, and any other has no suggestions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from proto.dispatch import Dispatcher
from proto.errors import InvalidParams
from proto.front import SERVICE
from proto.json_types import JsonObject
from proto.operation import Operation
from proto.ops import Table

MAX_VALUES = 100
"""The protocol's limit for one answer."""


class Completer:
    """Completes arguments of the operations of a table."""

    def __init__(self, table: Table, dispatcher: Dispatcher) -> None:
        self._table = table
        self._dispatcher = dispatcher

    async def complete(
        self, operation: Operation[object], argument: str, value: str, context: Mapping[str, str]
    ) -> list[str]:
        """Values of `argument` that fit what was typed, the most likely first.

        Raises:
            InvalidParams: the operation has no such argument.
            LinckiaError: of the completing operation.
        """
        schema = operation.input_schema
        properties: JsonObject = schema.get("properties", {})
        if argument not in properties:
            known = ", ".join(properties) or "none"
            raise InvalidParams(
                f"{operation.name} has no argument `{argument}`; it has: {known}", field="argument.name"
            )
        listed = listed_values(properties[argument], schema.get("$defs", {}))
        # A provider of a service that is not served is not in the table.
        provider = self._table.get(operation.completion or "")
        if listed or provider is None:
            return [v for v in listed if v.lower().startswith(value.lower())]
        params = provider.parse({"argument": argument, "value": value, "context": dict(context)})
        found = await self._dispatcher.call(provider, params, caller=SERVICE)
        return [str(v) for v in found] if isinstance(found, list) else []


def listed_values(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> list[str]:
    """The values that a schema lists (`enum`, also behind a reference or in a union)."""
    if "$ref" in schema:
        return listed_values(definitions.get(schema["$ref"].rsplit("/", 1)[-1], {}), definitions)
    if "anyOf" in schema:
        return [value for branch in schema["anyOf"] for value in listed_values(branch, definitions)]
    return [str(value) for value in schema.get("enum", ()) if value is not None]


def completion_result(values: list[str]) -> JsonObject:
    """The result of `completion/complete`, in wire form."""
    return {
        "completion": {
            "values": values[:MAX_VALUES],
            "total": len(values),
            "hasMore": len(values) > MAX_VALUES,
        }
    }
