"""A server made with the MCP SDK: `python server.py FILE [FAULT]`. Without a fault it is a good one.

Its tools: `echo`, which reads, `add` (a line of FILE) and `lines` (gives it back).
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from mcp.server import MCPServer
from mcp_types import ToolAnnotations

FILE, FAULT = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""
READS = ToolAnnotations(read_only_hint=True)

kept: list[bytes] = []
opened: list[int] = []
calls = 0
server = MCPServer("planted", version="1")


@server.tool(annotations=READS)
async def echo(text: str) -> str:
    """Return the text."""
    global calls  # noqa: PLW0603  # the server's state
    calls += 1
    match FAULT:
        case "leaks":
            kept.append(b"x" * 200_000)
        case "opens":
            opened.append(os.open(os.devnull, os.O_RDONLY))
        case "forgets" if calls % 20 == 0:
            await asyncio.sleep(1e6)
        case "changes" if calls > 100:
            return f"{text}!"
    return text


@server.tool()
def add(text: str) -> str:
    """Add a line to the file."""
    match FAULT:
        case "late":
            threading.Timer(1, store, (text,)).start()
        case "twice":
            store(text if lines().count("\n") % 3 < 2 else f"{text}\n{text}")
        case "half":
            store(text if lines().count("\n") % 3 < 2 else text[: len(text) * 2 // 3])
        case _:
            store(text)
    return "added"


def store(text: str) -> None:
    with open(FILE, "a") as file:
        file.write(f"{text}\n")
        file.flush()
        os.fsync(file.fileno())


@server.tool(annotations=READS)
def lines() -> str:
    """Return the file."""
    try:
        with open(FILE) as file:
            return file.read()
    except FileNotFoundError:
        return ""


def between(judged: Callable[[bytes], bool]) -> None:
    """Put a thread before stdin that reads as a careless server does, and stops at the first read that it rejects."""
    given = os.dup(0)
    read, write = os.pipe()
    os.dup2(read, 0)
    os.close(read)

    def run() -> None:
        while data := os.read(given, 65_536):
            if not judged(data):
                time.sleep(1e6)
            os.write(write, data)
        os.close(write)

    threading.Thread(target=run, daemon=True).start()


def behind(more: Callable[[bytes], bytes]) -> None:
    """Put a thread behind stdout, which adds something to every tenth line."""
    taken = os.dup(1)
    read, write = os.pipe()
    os.dup2(write, 1)
    os.close(write)

    def run() -> None:
        with open(read, "rb") as lines, open(taken, "wb", buffering=0) as out:
            for number, line in enumerate(lines, 1):
                out.write(line if number % 10 else line + more(line))

    threading.Thread(target=run, daemon=True).start()


def is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        os.write(2, f"careless: {error}\n".encode())
        os._exit(7)
    return True


def main() -> None:
    match FAULT:
        case "prints":
            behind(lambda _: b"serving\n")
        case "doubles":
            behind(lambda line: line)
        case "foreign":
            behind(lambda _: b'{"jsonrpc":"2.0","id":"nobody","result":{}}\n')
        case "half_lines":
            between(lambda data: data.endswith(b"\n"))
        case "bad_text":
            between(is_text)
        case "orphan":
            subprocess.Popen(
                ["sleep", "1000"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
        case "stays":
            threading.Thread(target=time.sleep, args=(1e6,)).start()
    server.run("stdio")


if __name__ == "__main__":
    main()
