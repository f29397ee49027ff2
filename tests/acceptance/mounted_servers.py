"""Real MCP servers: how to start them, and requests to which their replies can be compared."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from tests.acceptance.install_servers import script

PAGE = "<html><head><title>Garden</title></head><body><h1>Tulips</h1><button>Water</button></body></html>"

LISTS = {
    "tools": ["tools/list"],
    "resources": ["resources/list", "resources/templates/list"],
    "prompts": ["prompts/list"],
}
"""Methods that list, by the capability that has them."""


class Request(msgspec.Struct, frozen=True):
    """A request, and what in its reply differs from one time to the next."""

    method: str
    params: dict[str, Any] = {}
    varying: str = ""
    """Regular expression that is removed from the reply, as JSON, before it is compared."""

    def fixed(self, reply: object) -> str:
        """Return the reply without what varies."""
        text = json.dumps(reply, sort_keys=True, ensure_ascii=False)
        return re.sub(self.varying, "", text) if self.varying else text


class Server(msgspec.Struct, frozen=True):
    """A real server.

    Attributes:
        folder: where its files are.
        network: whether it needs connections to other programs.
        prepare: makes the files in the folder, always the same.
    """

    name: str
    command: list[str]
    requests: list[Request]
    folder: Path
    environment: dict[str, str] = {}
    network: bool = False
    prepare: Callable[[Path], None] = lambda folder: None

    def table(self) -> dict[str, object]:
        """Return its settings as a mounted server, which is confined to its folder."""
        first, *rest = self.command
        walls = {"confine": True, "roots": [str(self.folder)], "network": self.network}
        return {"command": first, "args": rest, "cwd": str(self.folder), "env": self.environment, **walls}

    def reset(self) -> None:
        """Make its files as they were at the beginning."""
        for path in self.folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.prepare(self.folder)


def call(name: str, varying: str = "", /, **arguments: object) -> Request:
    return Request("tools/call", {"name": name, "arguments": arguments}, varying)


def read(uri: str, varying: str = "") -> Request:
    return Request("resources/read", {"uri": uri}, varying)


def prompt(name: str, /, **arguments: str) -> Request:
    return Request("prompts/get", {"name": name, "arguments": arguments})


def complete(ref: dict[str, str], name: str, value: str, /, **context: str) -> Request:
    params: dict[str, Any] = {"ref": ref, "argument": {"name": name, "value": value}}
    return Request("completion/complete", {**params, "context": {"arguments": context}} if context else params)


UNKNOWN = [read("nothing://here"), prompt("no_such_prompt")]
"""Requests that each server refuses in its own words; unknown tools are refused by Linckia."""

TIMES = (
    r"\d{4}-\d\d-\d\d[T ][0-9:.]+Z?|[A-Z][a-z]{2} [A-Z][a-z]{2} \d\d \d{4} [0-9:]+ GMT[^\"\\]*|\d{1,2}:\d\d:\d\d [AP]M"
)


def _everything(folder: Path) -> list[Request]:
    static = "demo://resource/static/document/features.md"
    dynamic = "demo://resource/dynamic/"
    return [
        call("echo", message="héllo \u2028 \U0001f600"),
        call("echo"),
        *(call("get-annotated-message", messageType=kind, includeImage=True) for kind in ("error", "success", "debug")),
        call("get-resource-links", count=4),
        call("get-resource-reference", TIMES, resourceType="Text", resourceId=3),
        call("get-resource-reference", r'"blob": "[^"]*"', resourceType="Blob", resourceId=2),
        call("get-structured-content", location="Chicago"),
        call("get-sum", a=0.1, b=0.2),
        call("get-sum", a="one", b=2),
        call("get-tiny-image"),
        call("gzip-file-as-resource", name="x.gz", data="data:text/plain,hello", outputType="resource"),
        call("trigger-long-running-operation", duration=0.05, steps=2),
        read(static),
        read(dynamic + "text/1", TIMES),
        read(dynamic + "blob/1", r'"blob": "[^"]*"'),
        read(dynamic + "text/none"),
        prompt("simple-prompt"),
        prompt("args-prompt", city="Bern"),
        prompt("args-prompt"),
        prompt("completable-prompt", department="Sales", name="Bob"),
        Request(
            "prompts/get",
            {"name": "resource-prompt", "arguments": {"resourceType": "Text", "resourceId": "2"}},
            TIMES,
        ),
        complete({"type": "ref/prompt", "name": "completable-prompt"}, "department", "S"),
        complete({"type": "ref/prompt", "name": "completable-prompt"}, "name", "", department="Sales"),
        complete({"type": "ref/resource", "uri": dynamic + "text/{resourceId}"}, "resourceId", "1"),
        *UNKNOWN,
    ]


def _filesystem(folder: Path) -> list[Request]:
    def path(name: str) -> str:
        return str(folder / name)

    # Times of birth cannot be set.
    stamps = TIMES + r"|created: [^\\]*|accessed: [^\\]*|modified: [^\\]*"
    return [
        call("list_allowed_directories"),
        call("read_text_file", path=path("notes.txt")),
        call("read_file", path=path("notes.txt"), head=1),
        call("read_text_file", path=path("notes.txt"), tail=1),
        call("read_text_file", path=path("absent.txt")),
        call("read_text_file", path="/etc/passwd"),
        call("read_media_file", path=path("dot.png")),
        call("read_multiple_files", paths=[path("notes.txt"), path("absent.txt")]),
        call("list_directory", path=str(folder)),
        call("list_directory_with_sizes", path=str(folder), sortBy="size"),
        call("directory_tree", path=str(folder)),
        call("search_files", path=str(folder), pattern="**/*.txt"),
        call("get_file_info", stamps, path=path("notes.txt")),
        call("create_directory", path=path("new")),
        call("write_file", path=path("new/a.txt"), content="a\nb\n"),
        call("edit_file", path=path("new/a.txt"), edits=[{"oldText": "b", "newText": "c"}]),
        call("edit_file", path=path("new/a.txt"), edits=[{"oldText": "zzz", "newText": "c"}]),
        call("move_file", source=path("new/a.txt"), destination=path("new/b.txt")),
        call("read_text_file", path=path("new/b.txt")),
        call("write_file", path=path("new/c.txt")),
    ]


def _files(folder: Path) -> None:
    (folder / "notes.txt").write_text("first\nsecond\nthird\n")
    (folder / "dot.png").write_bytes(bytes.fromhex("89504e470d0a1a0a0000000d49484452"))
    (folder / "sub").mkdir()
    (folder / "sub" / "more.txt").write_text("more")


def _memory(folder: Path) -> list[Request]:
    def entity(name: str) -> dict[str, object]:
        return {"name": name, "entityType": "person", "observations": [f"{name} gardens"]}

    relation = {"from": "Ada", "to": "Bea", "relationType": "knows"}
    return [
        call("read_graph"),
        call("create_entities", entities=[entity("Ada"), entity("Bea")]),
        call("create_relations", relations=[relation]),
        call("add_observations", observations=[{"entityName": "Ada", "contents": ["is tall"]}]),
        call("add_observations", observations=[{"entityName": "Zoe", "contents": ["is tall"]}]),
        call("search_nodes", query="tall"),
        call("open_nodes", names=["Bea"]),
        read("memory://knowledge-graph"),
        call("delete_observations", deletions=[{"entityName": "Ada", "observations": ["is tall"]}]),
        call("delete_relations", relations=[relation]),
        call("delete_entities", entityNames=["Bea"]),
        call("read_graph"),
        UNKNOWN[0],
    ]


def _thinking(folder: Path) -> list[Request]:
    def thought(number: int, **more: object) -> Request:
        numbers = {"thoughtNumber": number, "totalThoughts": 2}
        return call("sequentialthinking", thought="hm", nextThoughtNeeded=number < 2, **numbers, **more)

    return [thought(1), thought(2, isRevision=True, revisesThought=1), thought(0)]


def _git(folder: Path) -> list[Request]:
    repo = {"repo_path": str(folder / "repo")}
    return [
        call("git_status", **repo),
        call("git_diff_unstaged", **repo),
        call("git_add", **repo, files=["a.txt"]),
        call("git_diff_staged", **repo, context_lines=1),
        call("git_commit", **repo, message="Change a"),
        call("git_log", **repo, max_count=5),
        call("git_show", **repo, revision="HEAD"),
        call("git_create_branch", **repo, branch_name="other"),
        call("git_checkout", **repo, branch_name="other"),
        call("git_branch", **repo, branch_type="local"),
        call("git_diff", **repo, target="HEAD~1"),
        call("git_reset", **repo),
        call("git_show", **repo, revision="nothing"),
        call("git_status", repo_path="/"),
    ]


GIT = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "T"), ("EMAIL", "t@example.org"), ("DATE", "2026-01-01T00:00:00+0000"))
}


def _repository(folder: Path) -> None:
    (repo := folder / "repo").mkdir()
    (repo / "a.txt").write_text("one\n")
    for arguments in (["init", "-q", "-b", "main"], ["add", "a.txt"], ["commit", "-q", "-m", "First"]):
        subprocess.run(["git", *arguments], cwd=repo, env={**os.environ, **GIT}, check=True)
    (repo / "a.txt").write_text("one\ntwo\n")


def _fetch(folder: Path) -> list[Request]:
    closed = "http://127.0.0.1:9/"
    return [call("fetch", url=closed), call("fetch"), prompt("fetch", url=closed), *UNKNOWN]


def _time(folder: Path) -> list[Request]:
    zones = {"source_timezone": "Etc/UTC", "target_timezone": "Asia/Tokyo"}
    return [
        call("get_current_time", TIMES + r"|T[0-9:]+\+", timezone="Asia/Tokyo"),
        call("convert_time", **zones, time="12:30"),
        call("convert_time", **zones, time="25:99"),
        call("get_current_time", timezone="Nowhere/Town"),
    ]


def _sqlite(folder: Path) -> list[Request]:
    return [
        call("create_table", query="CREATE TABLE plants (name TEXT, height REAL)"),
        call("write_query", query="INSERT INTO plants VALUES ('tulip', 0.4), ('oak', 22)"),
        call("read_query", query="SELECT * FROM plants ORDER BY height"),
        call("list_tables"),
        call("describe_table", table_name="plants"),
        call("append_insight", insight="Oaks are taller"),
        call("read_query", query="SELECT nonsense"),
        call("read_query", query="DROP TABLE plants"),
        prompt("mcp-demo", topic="gardens"),
        *UNKNOWN,
    ]


def _browser(folder: Path) -> list[Request]:
    url = (folder / "page.html").as_uri()
    files = r"page-[0-9TZ.:-]+|\d+ms"
    return [
        call("browser_navigate", files, url=f"data:text/html,{PAGE}"),
        call("browser_snapshot", files),
        call("browser_evaluate", files, function="() => document.title"),
        call("browser_navigate", files, url=url),
        call("browser_click", files, target="nowhere"),
        call("browser_tabs", files, action="list"),
        call("browser_close", files),
    ]


def _page(folder: Path) -> None:
    (folder / "page.html").write_text(PAGE)


def servers(root: Path) -> Iterator[Server]:
    """All servers, with folders below `root`; those not installed have commands that do not exist."""
    made: dict[str, tuple[list[str], Callable[[Path], list[Request]], dict[str, str], Callable[[Path], None]]]

    def nothing(folder: Path) -> None:
        pass

    def own(name: str) -> str:
        return str(root / name)

    chromium = shutil.which("chromium") or "chromium"
    browser = ["--headless", "--isolated", "--no-sandbox", "--executable-path", chromium]
    made = {
        "everything": (["mcp-server-everything"], _everything, {}, nothing),
        "filesystem": (["mcp-server-filesystem", own("filesystem")], _filesystem, {}, _files),
        "memory": (["mcp-server-memory"], _memory, {"MEMORY_FILE_PATH": own("memory") + "/graph.jsonl"}, nothing),
        "sequential-thinking": (["mcp-server-sequential-thinking"], _thinking, {}, nothing),
        "git": (["mcp-server-git", "--repository", own("git") + "/repo"], _git, GIT, _repository),
        "fetch": (["mcp-server-fetch", "--ignore-robots-txt"], _fetch, {}, nothing),
        "time": (["mcp-server-time"], _time, {}, nothing),
        "sqlite": (["mcp-server-sqlite", "--db-path", own("sqlite") + "/test.db"], _sqlite, {}, nothing),
        "playwright": (["playwright-mcp", *browser], _browser, {}, _page),
    }
    for name, (command, requests, environment, prepare) in made.items():
        (folder := root / name).mkdir(parents=True, exist_ok=True)
        path = str(script(name, command[0]))
        network = name in ("fetch", "playwright")
        yield Server(name, [path, *command[1:]], requests(folder), folder, environment, network, prepare)


NAMES = [
    "everything", "filesystem", "memory", "sequential-thinking", "git", "fetch", "time", "sqlite", "playwright",
]  # fmt: skip
