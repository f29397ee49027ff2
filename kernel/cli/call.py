"""`linckia call`: one operation, JSON in and JSON out."""

from __future__ import annotations

import argparse
import json
import sys

from kernel.cli import Usage
from kernel.cli.calls import connect, show_json
from kernel.cli.terminal import Bars
from kernel.json_types import JsonObject


def call(arguments: argparse.Namespace) -> int:
    """The result goes to stdout, indented on a terminal and on one line elsewhere; progress to stderr.

    Raises:
        Usage: the parameters are not a JSON object.
        ControlError: there is no such operation, or the call failed.
    """
    params = _params(arguments.params)
    with connect(arguments) as client, Bars(arguments.name) as show:
        result = client.call(arguments.name, params, timeout_s=arguments.timeout, on_progress=show)
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
            'Quote them for the shell, as in: linckia call mcp.echo \'{"message": "hello"}\''
        ) from None
    if not isinstance(params, dict):
        raise Usage(f"the parameters are a JSON {_kind(params)}; they must be an object: '{{\"name\": value}}'")
    return params


def _kind(value: object) -> str:
    names = {list: "array", str: "string", bool: "truth value", type(None): "null"}
    return names.get(type(value), "number")
