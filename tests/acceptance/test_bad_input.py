"""Every parameter of every operation, wrong in every way, through a real kernel: a clear error that names it, nothing
more."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from proto import ops
from proto.operation import CLIENT, Operation, Role
from tests.acceptance.bad_input import HUGE, bad_arguments, good_arguments
from tests.acceptance.conftest import Front
from tests.system.cli.clients import StdioClient, stdio_client

TABLE = ops.load(["tests.conformance.operations"])
TOOLS = [op for op in TABLE.values() if op.role is Role.TOOL and op.admits(CLIENT)]
PROMPTS = [op for op in TABLE.values() if op.role is Role.PROMPT and op.admits(CLIENT)]


@pytest.fixture(scope="module")
def client(front: Front) -> Iterator[StdioClient]:
    with stdio_client(front.kernel.data_dir) as client:
        client.initialize()
        yield client


def named(operation: Operation[Any]) -> str:
    return operation.name


@pytest.mark.parametrize("operation", TOOLS, ids=named)
def test_a_bad_argument_is_refused_by_name(client: StdioClient, operation: Operation[Any]) -> None:
    operation.parse(good_arguments(operation))
    refused: set[str] = set()
    for name, arguments, expected in bad_arguments(operation):
        answer = client.request(1, "tools/call", name=operation.name, arguments=arguments)
        if operation.codes:
            assert answer["error"]["code"] == -32602, (name, answer)
            text, failure = answer["error"]["message"], answer["error"]["data"]
        else:
            assert answer["result"]["isError"] is True, (name, answer)
            text = answer["result"]["content"][0]["text"]
            failure = answer["result"]["_meta"]["linckia/failure"]
        assert failure["kind"] == "invalid_params"
        assert failure["executed"] == "no"
        assert text == expected.failure.message
        # By the name that the tool's schema shows.
        assert f"`{operation.params.common.get(name, name)}" in text, (name, text)
        assert len(text) < 2000, "an error must not repeat a huge argument"
        refused.add(name)
    fields = set(operation.input_schema["properties"])
    free = {name for name in fields if not set(operation.input_schema["properties"][name]) - {"description", "default"}}
    assert refused == fields - free | {"no_such_parameter", HUGE[:200]}


@pytest.mark.parametrize("operation", TOOLS, ids=named)
def test_arguments_that_are_no_object_are_refused(client: StdioClient, operation: Operation[Any]) -> None:
    wrong: list[Any] = [[], "text", 5, True]
    for arguments in wrong:
        answer = client.request(1, "tools/call", name=operation.name, arguments=arguments)
        assert answer["error"]["code"] == -32602


def test_arguments_that_are_not_utf_8_are_refused(client: StdioClient) -> None:
    params = {"name": "mcp.echo", "arguments": {"message": "@"}}
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    assert client.process.stdin is not None
    assert client.process.stdout is not None
    client.process.stdin.write(json.dumps(call).encode().replace(b"@", b"\xff\xfe") + b"\n")
    client.process.stdin.flush()
    answer = json.loads(client.process.stdout.readline())
    assert answer["error"]["code"] == -32700


@pytest.mark.parametrize("operation", PROMPTS, ids=named)
def test_a_bad_argument_of_a_prompt_is_refused_by_name(client: StdioClient, operation: Operation[Any]) -> None:
    for name in ("no_such_argument", *(operation.input_schema.get("required", ()))):
        arguments = dict(good_arguments(operation))
        if name == "no_such_argument":
            arguments[name] = "x"
        else:
            del arguments[name]
        answer = client.request(1, "prompts/get", name=operation.name, arguments=arguments)
        assert answer["error"]["code"] == -32602
        assert name in answer["error"]["message"]


def test_bad_input_killed_no_service(front: Front, client: StdioClient) -> None:
    for service in front.kernel.status()["services"]:
        assert service["generation"] == 1, service
