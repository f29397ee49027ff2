"""`linckia call`, `restart`, `start` and `stop`: call an operation, control services and the kernel."""

from __future__ import annotations

import argparse
import json
import sys
import time

from proto.control.client import NoKernel
from proto.control.commands import Failed, Usage
from proto.control.terminal import Bars, connect, say, show_json
from proto.json_types import JsonObject

END_TIMEOUT_S = 30.0
"""Services may use their shutdown timeouts, one after the other if they depend on each other."""

POLL_S = 0.02


def call(arguments: argparse.Namespace) -> int:
    """Print the result on stdout as JSON, and progress on stderr; or the id of a task. Raises Usage, ControlError."""
    params = _params(arguments.params)
    if arguments.task:
        from proto.ops.tasks import TaskStart

        with connect(arguments) as client:
            asked = TaskStart(operation=arguments.name, arguments=params)
            say(client.call(asked, timeout_s=arguments.timeout, key=arguments.key).id)
        return 0
    with connect(arguments) as client, Bars(arguments.name) as show:
        result = client.call_named(
            arguments.name, params, timeout_s=arguments.timeout, on_progress=show, key=arguments.key
        )
    show_json(result)
    return 0


def _params(text: str) -> JsonObject:
    if text == "-":
        try:
            text = sys.stdin.buffer.read().decode()
        except UnicodeDecodeError as error:
            raise Usage(f"the parameters on stdin are not UTF-8: {error}") from None
    try:
        params = json.loads(text)
    except json.JSONDecodeError as error:
        raise Usage(
            f"the parameters are not JSON: {error.msg} at line {error.lineno}, column {error.colno}. "
            'Quote them for the shell, as in: linckia call mcp_echo \'{"message": "hello"}\''
        ) from None
    if not isinstance(params, dict):
        kinds = {list: "array", str: "string", bool: "boolean", type(None): "null"}
        kind = kinds.get(type(params), "number")
        raise Usage(f"the parameters are a JSON {kind}; they must be an object: '{{\"name\": value}}'")
    return params


def _operate(arguments: argparse.Namespace) -> int:
    """Call the kernel operation named like the command, for one service. Raises ControlError."""
    from proto.ops.kernel import KernelRestart, KernelStart, KernelStop

    asked = {"restart": KernelRestart, "start": KernelStart, "stop": KernelStop}[arguments.command]
    with connect(arguments) as client:
        result = client.call(asked(service=arguments.service))
    if arguments.json:
        show_json(result)
    else:
        say(result.message)
    return 0


restart = start = _operate


def stop(arguments: argparse.Namespace) -> int:
    """Stop a service, or the kernel. Raises ControlError, Failed."""
    if arguments.service:
        return _operate(arguments)
    from proto.ops.kernel import KernelShutdown

    with connect(arguments) as client:
        client.call(KernelShutdown())
    give_up_at = time.monotonic() + END_TIMEOUT_S
    while time.monotonic() < give_up_at:
        try:
            connect(arguments).close()
        except NoKernel:
            if arguments.json:
                show_json({"message": "the kernel has ended"})
            else:
                say("The kernel has ended.")
            return 0
        time.sleep(POLL_S)
    raise Failed(f"the kernel is still running {END_TIMEOUT_S:.0f} s after it was asked to end; see `linckia logs`")
