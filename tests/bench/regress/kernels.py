"""A running kernel of one checkout, with a folder of its own, as the comparison sees it: MCP over HTTP, and /proc."""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from proto.mcp import KEY as META
from proto.vocabulary import OTHER_NAMES, Names
from tests.bench.parts.wire import Http
from tests.bench.regress.checkouts import Checkout
from tests.system.running import free_port
from tests.system.support.workloads import NOTES, make_folder

START_TIMEOUT_S = 90
SETTLED_STATES = ("ready", "resting", "failed")
QUIET_S = 0.2
QUIET_SHARE = 0.15
"""A tree is quiet if it uses less of one processor than this for twice `QUIET_S`."""
SETTLE_TIMEOUT_S = 10.0
WITH_VECTORS_TIMEOUT_S = 60.0

DOCUMENTS = 20
"""Stored documents and memories of a prepared kernel."""


class Failed(Exception):
    """A call was not answered as it must be; the message says how it was."""


class Kernel:
    """A kernel that `running_kernel` started."""

    def __init__(self, checkout: Checkout, process: subprocess.Popen[bytes], folder: Path, port: int) -> None:
        self.checkout = checkout
        self.pid = process.pid
        self.root = folder / "root"
        self.data = folder / "data"
        self.http = Http(port)
        self._ids = itertools.count(1)
        self._knows_names = (checkout.folder / "proto" / "vocabulary.py").exists()
        """False before operations had their current names."""

    def body(self, tool: str, arguments: Mapping[str, Any], key: str = "") -> bytes:
        """Return the body of a tool's call."""
        name = tool if self._knows_names else OTHER_NAMES.get(tool, Names()).former or tool
        params = {"name": name, "arguments": arguments, **({"_meta": {META: key}} if key else {})}
        return json.dumps({"jsonrpc": "2.0", "id": next(self._ids), "method": "tools/call", "params": params}).encode()

    def call(self, tool: str, arguments: Mapping[str, Any]) -> Any:
        """Return the result of a tool. Raises Failed."""
        return result_of(self.http.ask(self.body(tool, arguments)))

    def reconnect(self) -> None:
        """Close the connections, since an idle one may be closed by the server at any time."""
        self.http.close()

    def services(self) -> dict[str, dict[str, Any]]:
        """Return the status of all services by name."""
        return {service["name"]: service for service in self.call("kernel_status", {})["services"]}

    def prepare(self) -> None:
        """Wait until the notes can be found, index the folder, and store documents and memories."""
        self.reconnect()
        give_up = time.monotonic() + WITH_VECTORS_TIMEOUT_S
        while self.call("notes_status", {})["notes"] < NOTES and time.monotonic() < give_up:
            time.sleep(0.1)
        calls: list[tuple[str, Mapping[str, Any]]] = [("index", {"root": str(self.root), "async": False})]
        for number in range(DOCUMENTS):
            calls.append(("execute", {"operations": [_document(number)]}))
            calls.append(("remember", {"text": f"Drawer {number} holds letter {number}"}))
        for tool, arguments in calls:
            # Without the operation, the paths that need it say so.
            with contextlib.suppress(Failed):
                self.call(tool, arguments)


def _document(number: int) -> dict[str, object]:
    return {"op": "add", "params": {"name": f"document-{number}", "content": f"text number {number}"}}


def result_of(answer: bytes) -> Any:
    """Return the result in the answer to a tool's call. Raises Failed."""
    try:
        message = json.loads(answer)
    except ValueError:
        raise Failed(f"no JSON: {answer[:200]!r}") from None
    if "error" in message:
        text = str(message["error"].get("message"))
        raise Failed("no such operation" if "nknown tool" in text else text[:200])
    result = message["result"]
    if result["isError"]:
        raise Failed(str(result["content"][0].get("text"))[:200])
    return result.get("structuredContent")


@contextlib.contextmanager
def running_kernel(checkout: Checkout, folder: Path) -> Iterator[Kernel]:
    """Start `linckia serve` of a checkout on a new root, and wait until its services have started."""
    root = folder / "root"
    root.mkdir(parents=True)
    make_folder(root)
    for name in ("moved/from", "moved/to", "deleted"):
        (root / name).mkdir(parents=True)
    for name in ("values.yaml", "edited.txt", "moved/from/a.txt", "moved/old.txt"):
        (root / name).write_text("a: 0\n")
    port = free_port()
    address = ("--data", str(folder / "data"), "--http", f"127.0.0.1:{port}")
    process = subprocess.Popen(checkout.command("serve", str(root), *address), stderr=subprocess.DEVNULL)
    try:
        yield _started(checkout, process, folder, port)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _started(checkout: Checkout, process: subprocess.Popen[bytes], folder: Path, port: int) -> Kernel:
    give_up = time.monotonic() + START_TIMEOUT_S
    kernel: Kernel | None = None
    waiting = ["HTTP"]
    while time.monotonic() < give_up:
        if process.poll() is not None:
            raise SystemExit(f"scripts/bench regress: the kernel of {checkout.folder} ended with {process.returncode}")
        with contextlib.suppress(OSError, EOFError, Failed):
            kernel = kernel or Kernel(checkout, process, folder, port)
            states = {name: service["state"] for name, service in kernel.services().items()}
            waiting = [f"{name} ({state})" for name, state in states.items() if state not in SETTLED_STATES]
            if not waiting:
                for name in (name for name, state in states.items() if state == "failed"):
                    print(f"scripts/bench regress: {checkout.name}: the service {name} has failed", file=sys.stderr)
                return kernel
        time.sleep(0.2)
        if kernel is not None:
            kernel.reconnect()
    raise SystemExit(f"scripts/bench regress: {checkout.folder} does not start: {', '.join(waiting)}")


def tree(pid: int) -> list[psutil.Process]:
    """Return a process and all below it; none if it has ended."""
    try:
        top = psutil.Process(pid)
        return [top, *top.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def processor_s(pids: Iterable[int]) -> float:
    """Return the processor time that the trees have used."""
    used = 0.0
    for process in itertools.chain.from_iterable(map(tree, pids)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            used += times.user + times.system
    return used


def settle(*pids: int, timeout_s: float = SETTLE_TIMEOUT_S, windows: int = 2) -> None:
    """Wait until the trees use hardly any processor time, since work that earlier calls left would slow others."""
    give_up = time.monotonic() + timeout_s
    quiet, before, since = 0, processor_s(pids), time.monotonic()
    while quiet < windows and since < give_up:
        time.sleep(QUIET_S)
        now, after = time.monotonic(), processor_s(pids)
        quiet = quiet + 1 if after - before < QUIET_SHARE * (now - since) else 0
        before, since = after, now


def proportional_mb(pid: int) -> float:
    """Return the memory of a tree, in which pages that processes share count once (PSS)."""
    kilobytes = 0
    for process in tree(pid):
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
            kilobytes += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return kilobytes / 1024
