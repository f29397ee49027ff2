"""`linckia call`: one operation, JSON in and JSON out."""

from __future__ import annotations

import argparse
import json
import os
import sys

from kernel.cli.main import Failed, Usage
from kernel.control.address import find_data_dir
from kernel.control.client import CallFailed, Client
from kernel.json_types import JsonObject

BAR_CELLS = 30


def call(arguments: argparse.Namespace) -> int:
    """The result goes to stdout, indented on a terminal and on one line elsewhere; progress to stderr.

    Raises:
        Usage: the parameters are not a JSON object.
        Failed: there is no such operation.
        ControlError: the call failed.
    """
    params = _params(arguments.params)
    progress = Progress()
    on_progress = progress.show if sys.stderr.isatty() else None
    with Client(find_data_dir(arguments.data, os.environ)) as client:
        try:
            result = client.call(arguments.name, params, timeout_s=arguments.timeout, on_progress=on_progress)
        except CallFailed as error:
            if error.failure.get("kind") == "unknown_operation":
                raise Failed(_unknown(arguments.name)) from None
            raise
        finally:
            progress.clear()
    print(json.dumps(result, ensure_ascii=False, indent=2 if sys.stdout.isatty() else None))
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


def _unknown(name: str) -> str:
    # Only now, since the table costs imports that a call that succeeds does without.
    import difflib

    from proto.ops import load

    near = difflib.get_close_matches(name, load(), n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else "`linckia tools` lists what can be called"
    return f"there is no operation {name!r}; {hint}"


class Progress:
    """One line on stderr that is drawn over."""

    def __init__(self) -> None:
        self._drawn = False

    def show(self, progress: JsonObject) -> None:
        done, total, message = progress["done"], progress["total"], progress["message"] or ""
        if total:
            cells = int(BAR_CELLS * min(done / total, 1))
            text = f"[{'#' * cells}{'.' * (BAR_CELLS - cells)}] {done:g}/{total:g} {message}"
        else:
            text = f"{done:g} {message}"
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()
        self._drawn = True

    def clear(self) -> None:
        if self._drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
