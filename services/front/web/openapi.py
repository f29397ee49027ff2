"""The HTTP routes of an operation table as an OpenAPI 3.1 document.

OpenAPI 3.1's schemas are JSON Schema 2020-12, so those of the operations are used unchanged. Their definitions move to
`components`, each with the name of its route in front.
"""

from __future__ import annotations

import re
from typing import Any, Final

from proto.json_types import JsonObject
from proto.operation import Access, Operation, Route
from proto.ops import Table
from proto.validation import json_schema

OPENAPI: Final = "3.1.1"
PATH: Final = "/openapi.json"

_JSON, _BYTES = "application/json", "application/octet-stream"
_VARIABLE = re.compile(r"\{([A-Za-z_]\w*)(?::\w+)?\}")
_FAILURE: Final = {"$ref": "#/components/responses/Failure"}

_ERRORS: Final[JsonObject] = {
    "400": "The request is invalid; the message names the parameter.",
    "401": "The token is missing or not valid.",
    "403": "The token does not allow this.",
    "404": "There is no such thing.",
    "413": "The body is too large.",
    "422": "The request was in flight at several deaths of its service, and is refused for a while.",
    "429": "Too many requests; `Retry-After` says when to try again.",
    "503": "The service is down or starting; `Retry-After` says when to try again.",
    "504": "The deadline passed.",
}


def document(table: Table, version: str) -> JsonObject:
    """Return the OpenAPI document of all routes: those that operations and endpoints declare, and the fixed ones."""
    schemas: JsonObject = {}
    paths: dict[str, JsonObject] = {}

    def add(route: Route, found: JsonObject) -> None:
        paths.setdefault(_VARIABLE.sub(r"{\1}", route.path), {})[route.method.lower()] = found

    for op in table.values():
        if op.http is not None:
            add(op.http, _operation(op, op.http, schemas))
    for endpoint in table.endpoints:
        route = endpoint.route
        name = _identifier(route)
        found = _described(endpoint.__doc__ or "", endpoint.service)
        found |= _request(name, route, json_schema(endpoint), schemas)
        found["responses"] = _responses(route, {_JSON: {"schema": {}}})
        add(route, found | {"operationId": name})
    for path, (method, summary, kind, needs_token) in FIXED.items():
        paths[path] = {method: _fixed(path, summary, kind, needs_token=needs_token)}
    return {
        "openapi": OPENAPI,
        "info": {
            "title": "Linckia",
            "version": version,
            "description": "Routes for programs that do not speak MCP; clients that do use `/mcp`.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "http://127.0.0.1:3000"}],
        "security": [{"token": []}],
        "paths": dict(sorted(paths.items())),
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "responses": {
                "Failure": {
                    "description": "What went wrong.",
                    "content": {_JSON: {"schema": {"$ref": "#/components/schemas/Failure"}}},
                }
            },
            "schemas": {
                "Failure": {
                    "type": "object",
                    "properties": {
                        "error": {
                            "anyOf": [
                                {"type": "string"},
                                {
                                    "type": "object",
                                    "properties": {"message": {"type": "string"}, "type": {"type": "string"}},
                                    "required": ["message"],
                                },
                            ]
                        }
                    },
                    "required": ["error"],
                },
                **dict(sorted(schemas.items())),
            },
        },
    }


FIXED: Final[dict[str, tuple[str, str, str, bool]]] = {
    "/livez": ("get", "Whether HTTP is served", "text/plain", False),
    "/readyz": ("get", "Whether every service that should run is ready", _JSON, False),
    "/health": ("get", "The same as /readyz", _JSON, False),
    "/ping": ("get", "Answers with pong", _JSON, True),
    "/metrics": ("get", "The figures of every service, for Prometheus", "text/plain", True),
    PATH: ("get", "This document", _JSON, True),
}
"""Routes that no operation declares: method, summary, type of the answer, and whether they need a token. MCP's own
(`/mcp`, `/mcp/SURFACE`, `/v1/mcp`) and the operator's page are left out: their protocols are described elsewhere."""


def _fixed(path: str, summary: str, kind: str, *, needs_token: bool) -> JsonObject:
    ready = {"503": {"description": "Not yet."}} if path in ("/readyz", "/health") else {}
    return {
        "operationId": path.strip("/").replace(".", "_"),
        "summary": summary,
        "tags": ["front"],
        **({} if needs_token else {"security": []}),
        "responses": {"200": {"description": "OK", "content": {kind: {"schema": {}}}}, **ready}
        | ({"401": {"description": _ERRORS["401"]}} if needs_token else {}),
    }


def _operation(op: Operation[Any], route: Route, schemas: JsonObject) -> JsonObject:
    found = _described(op.description, op.service) | {"operationId": op.name}
    found |= _request(op.name, route, op.input_schema, schemas)
    if route.file:
        content: JsonObject = {_BYTES: {"schema": {}}}
    else:
        content = {_JSON: {"schema": _moved(op.name, "Result", json_schema(op.result), schemas)}}
    found["responses"] = _responses(route, content)
    if op.access is not Access.READ:
        found["description"] += "\n\nIt may change stored data."
    return found


def _described(text: str, service: str) -> JsonObject:
    text = re.sub(r"[ \t]*\n[ \t]*", "\n", text.strip())
    return {"summary": _summary(text), "description": text, "tags": [service]}


def _summary(text: str) -> str:
    return " ".join(text.split("\n\n", 1)[0].split()).split(". ", 1)[0].rstrip(".")


def _request(name: str, route: Route, schema: JsonObject, schemas: JsonObject) -> JsonObject:
    variables = _VARIABLE.findall(route.path)
    if route.method == "POST":
        if route.body:
            return {"requestBody": {"required": True, "content": {_BYTES: {"schema": {}}}}}
        moved = _moved(name, "Request", schema, schemas)
        return {"requestBody": {"required": True, "content": {_JSON: {"schema": moved}}}}
    required = schema.get("required", [])
    parameters = []
    for field, each in schema.get("properties", {}).items():
        if route.file and field in ("offset", "limit"):
            # A whole file is served, or the range in the request's header.
            continue
        moved = _moved(name, f"Parameter.{field}", {**each, "$defs": schema.get("$defs", {})}, schemas, inline=True)
        parameter: JsonObject = {"name": field, "in": "path" if field in variables else "query"}
        if description := moved.pop("description", ""):
            parameter["description"] = description
        parameters.append(parameter | {"required": field in required or field in variables, "schema": moved})
    return {"parameters": parameters} if parameters else {}


def _responses(route: Route, content: JsonObject) -> JsonObject:
    errors = {status: {**_FAILURE} for status in _ERRORS}
    return {"200": {"description": "OK", "content": content}, **errors}


def _moved(name: str, what: str, schema: JsonObject, schemas: JsonObject, *, inline: bool = False) -> JsonObject:
    """Move a schema and its definitions to `schemas`. Returns a reference to it, or the schema itself if `inline`."""

    def renamed(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                key: f"#/components/schemas/{name}.{each.removeprefix('#/$defs/')}" if key == "$ref" else renamed(each)
                for key, each in value.items()
                if key != "$defs"
            }
        return [renamed(each) for each in value] if isinstance(value, list) else value

    for key, each in schema.get("$defs", {}).items():
        schemas[f"{name}.{key}"] = renamed(each)
    found: JsonObject = renamed(schema)
    if inline or "$ref" in found:
        return found
    schemas[f"{name}.{what}"] = found
    return {"$ref": f"#/components/schemas/{name}.{what}"}


def _identifier(route: Route) -> str:
    return re.sub(r"\W+", "_", f"{route.method.lower()} {route.path}").strip("_")
