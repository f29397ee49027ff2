"""A visitor of the operator's page in a real browser, and a kernel with data for it to show."""

from __future__ import annotations

import contextlib
import json
import struct
import sys
import time
import urllib.parse
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.system.cli.clients import linckia
from tests.system.running import HTTP, RunningKernel, running

WIDTHS = {"desktop": (1280, 900), "phone": (390, 844)}

WAYS = [("mouse", "desktop", "light"), ("keyboard", "phone", "dark")]
CROSSED_WAYS = [("keyboard", "desktop", "light"), ("mouse", "phone", "dark")]
"""How a task is done. One test of a view takes these and another one those, so that each hand meets each width."""

LIKE_OTHERS = "tbody tr:nth-child(n+9), ul.plain > li:nth-child(n+9)"
"""What comes after the eighth row of a table or the eighth card of a list."""

MOUNTED = """\
from mcp.server import MCPServer

server = MCPServer("weather")

@server.tool()
def forecast(city: str, days: int = 3) -> str:
    "Forecast the weather of a city"
    return f"{city}: sunny for {days} days"

server.run()
"""

CODE = '''"""Stars of the sea."""


class SeaStar:
    """An animal that regrows its arms."""

    def regrow(self, arm: int) -> int:
        return self.count() + arm

    def count(self) -> int:
        return 5
'''


def picture(path: Path, width: int, height: int) -> None:
    """Write a PNG."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + bytes(c for x in range(width) for c in (x % 256, y % 256, 128)) for y in range(height))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    image = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + image)


def session_file(path: Path) -> None:
    """Write a conversation as Claude Code does, with a branch."""
    head = {"sessionId": "5e551011-0000-4000-8000-000000000001", "cwd": "/home/me/stars", "version": "2.0.0"}
    usage = {"input_tokens": 900, "output_tokens": 60}

    def turn(number: int, parent: int | None, role: str, text: str) -> dict[str, Any]:
        message: dict[str, Any] = {"role": role, "content": text}
        if role == "assistant":
            message |= {"id": f"m{number}", "model": "claude-sonnet-4-5-20250929", "type": "message", "usage": usage}
            message["content"] = [{"type": "text", "text": text}]
        name = "00000000-0000-4000-8000-{:012d}".format
        return {
            **head, "type": role, "message": message, "uuid": name(number), "timestamp": f"2026-11-0{number}T10:00:00Z",
            "parentUuid": None if parent is None else name(parent),
        }  # fmt: skip

    turns = [
        turn(1, None, "user", "How does a sea star regrow an arm?"),
        turn(2, 1, "assistant", "From its central disc, within a year."),
        turn(3, 2, "user", "Does it hurt?"),
        turn(4, 3, "assistant", "It has no brain that could tell."),
        turn(5, 2, "user", "How many arms has Linckia?"),
        turn(6, 5, "assistant", "Usually five."),
    ]
    path.write_text("".join(json.dumps(each) + "\n" for each in turns))


def fill(kernel: RunningKernel, folder: Path, root: Path) -> None:
    session_file(folder / "session.jsonl")
    for command in (("import-chats", str(folder / "session.jsonl")), ("add", str(root / "code"))):
        done = linckia(kernel.data_dir, *command)
        assert done.returncode == 0, done.stderr
    (root / "code" / "star.py").write_text(CODE.replace("return 5", "return 6"))
    assert linckia(kernel.data_dir, "add", str(root / "code")).returncode == 0
    kernel.call("index", {"path": str(root), "async": False})
    for text in ("Deploys happen on Fridays", "Deploys happen on Mondays"):
        kernel.call("remember", {"text": text, "scope": "project:stars"})
    while not kernel.call("everything_search", {"query": "regrow a lost arm"})["results"]:
        time.sleep(0.2)
    while kernel.status()["page_url"] is None:
        time.sleep(0.02)


STORED = "([key, token]) => { localStorage['linckia-key'] = key; localStorage['linckia-token'] = token; }"


class Visitor:
    """A page, with the messages of its console."""

    def __init__(self, browser: Any, width: str = "desktop", theme: str = "light") -> None:
        size = dict(zip(("width", "height"), WIDTHS[width], strict=True))
        self.context = browser.new_context(viewport=size, color_scheme=theme, reduced_motion="reduce")
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.page.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def sign_in(self, kernel: RunningKernel) -> None:
        """Open the overview as a browser does that has signed in before. It loads no other view first."""
        address, _, secret = kernel.status()["page_url"].partition("#")
        key, _, token = secret.partition(".")
        self.page.add_init_script(f"({STORED})({json.dumps([key, urllib.parse.unquote(token)])})")
        self.page.goto(f"{address}#/system")
        self.sees("processes well")

    def go(self, address: str) -> None:
        self.page.evaluate("address => { location.hash = address }", f"#/{address}")

    def sees(self, text: str) -> None:
        self.page.get_by_text(text).filter(visible=True).first.wait_for(timeout=20_000)

    def until(self, expression: str) -> None:
        """Wait until a JavaScript expression is true. Playwright's own waiting would violate the page's policy."""
        give_up = time.monotonic() + 20
        while not self.page.evaluate(expression):
            assert time.monotonic() < give_up, f"never true: {expression}"
            self.page.wait_for_timeout(50)


def axe_violations(page: Any) -> list[str]:
    """What axe finds wrong. Of long tables and lists, it looks at the first rows: it takes seconds for hundreds."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page, context={"exclude": [LIKE_OTHERS]}).response["violations"]
    return [f"{each['id']}: {[node['html'][:200] for node in each['nodes'][:3]]}" for each in found]


@contextlib.contextmanager
def filled_kernel(folder: Path) -> Iterator[RunningKernel]:
    """Run a kernel with notes, code, pictures, a conversation, memories and a mounted server."""
    root = folder / "root"
    for name in ("notes", "code", "photos"):
        (root / name).mkdir(parents=True)
    for number in range(40):
        links = f"See [[note-{(number + 1) % 40}]], [[note-{number * 7 % 40}]] and [[stars]]."
        (root / "notes" / f"note-{number}.md").write_text(f"# Note {number}\n\nArm number {number}. {links}\n")
    (root / "notes" / "stars.md").write_text("# Sea stars\n\nLinckia grows back any arm that it loses.\n")
    (root / "code" / "star.py").write_text(CODE)
    picture(root / "photos" / "sea.png", 240, 160)
    (root / "photos" / "copy.png").write_bytes((root / "photos" / "sea.png").read_bytes())
    server = folder / "weather.py"
    server.write_text(MOUNTED)
    data = folder / "data"
    data.mkdir(mode=0o700)
    settings = (
        f'[approvals]\nrequire = ["yaml_set"]\n[mcp.weather]\ncommand = "{sys.executable}"\nargs = ["{server}"]\n'
    )
    (data / "linckia.toml").write_text(settings)
    with running(data, [root], options=HTTP, token=True) as kernel:
        fill(kernel, folder, root)
        yield kernel
