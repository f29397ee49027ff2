"""The OpenAPI document is valid, has every route, and says what a running kernel answers."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from kernel import VERSION
from proto.ops import load
from services.front.web import metrics, routes
from services.front.web.openapi import document
from tests.system.running import RunningKernel, running

BODIES: dict[str, Any] = {
    "/v1/collections/create": {"collection": "birds"},
    "/v1/collections/upsert": {"collection": "birds", "documents": [{"id": "a", "text": "A kestrel hovers."}]},
    "/v1/collections/count": {"collection": "birds"},
    "/v1/collections/documents": {"collection": "birds", "ids": ["a"]},
    "/v1/collections/search": {"collection": "birds", "query": "kestrel"},
    "/v1/collections/delete": {"collection": "birds", "ids": ["a"]},
    "/v1/collections/drop": {"collection": "birds"},
    "/v1/embeddings": {"model": "all-MiniLM-L6-v2", "input": "a kestrel"},
}
QUERIES = {"/v1/search": "query=kestrel"}
TOKEN = "linckia_0123456789abcdef0123456789abcdef"


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningKernel]:
    folder = tmp_path_factory.mktemp("openapi")
    (folder / "root").mkdir()
    options = ("--http", "127.0.0.1:0")
    environment = {"LINCKIA_TOKEN": TOKEN}
    with running(folder / "data", [folder / "root"], options=options, environment=environment) as found:
        yield found


def asked(kernel: RunningKernel, method: str, path: str, body: Any = None, token: str = TOKEN) -> tuple[int, Any]:
    base = str(kernel.status()["http_url"]).removesuffix("/mcp")
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(base + path, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            content = answer.read()
            return answer.status, json.loads(content) if "json" in answer.headers["Content-Type"] else content
    except urllib.error.HTTPError as error:
        content = error.read()
        return error.code, json.loads(content) if content else None


def test_it_is_valid_and_has_every_route_and_no_other() -> None:
    made = document(load(), VERSION)
    validate(made)
    declared = [*routes.routes(None, load(), 1), *metrics.routes(None)]  # type: ignore[arg-type]  # never called
    # A parameter that may contain slashes is one of the path all the same.
    there = {
        (route.path.replace(":path}", "}"), method)  # type: ignore[attr-defined]
        for route in declared
        for method in getattr(route, "methods", ())
        if method != "HEAD"
    }
    described = {(path, method.upper()) for path, methods in made["paths"].items() for method in methods}
    assert described - there == {("/livez", "GET"), ("/readyz", "GET"), ("/health", "GET")}
    assert there - described == set()
    for path, methods in made["paths"].items():
        for method, each in methods.items():
            assert each["summary"], f"{method} {path} has no summary"


def test_a_kernel_serves_it_and_answers_as_it_says(kernel: RunningKernel) -> None:
    assert asked(kernel, "GET", "/openapi.json", token="")[0] == 401
    status, made = asked(kernel, "GET", "/openapi.json")
    assert (status, made["info"]["version"]) == (200, VERSION)
    registry: Registry[Any] = Registry().with_resource("urn:linckia", DRAFT202012.create_resource(made))
    for path, (method, each) in in_order(made):
        status, answer = asked(
            kernel, method.upper(), path + (f"?{QUERIES[path]}" if path in QUERIES else ""), BODIES.get(path),
            token="" if each.get("security") == [] else TOKEN,
        )  # fmt: skip
        assert str(status) in each["responses"], f"{method} {path}: {status} {answer}"
        if path in BODIES or path in QUERIES:
            assert status == 200, f"{method} {path}: {answer}"
        response = each["responses"][str(status)]
        if "$ref" in response:
            response = made["components"]["responses"]["Failure"]
        schema = response.get("content", {}).get("application/json", {}).get("schema")
        if schema:
            target = {"$ref": f"urn:linckia{schema['$ref']}"} if "$ref" in schema else schema
            Draft202012Validator(target, registry=registry).validate(answer)


def in_order(made: Any) -> list[tuple[str, tuple[str, Any]]]:
    """All routes without variables; first those that have an example, in its order."""
    found = [
        (path, (method, each))
        for path, methods in made["paths"].items()
        for method, each in methods.items()
        if "{" not in path
    ]
    places = {path: number for number, path in enumerate(BODIES)}
    return sorted(found, key=lambda one: places.get(one[0], len(places)))
