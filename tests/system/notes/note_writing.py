"""Notes are written, edited and renamed through the Python SDK over stdio while the service that does it is killed.

Each note says of itself whether it is whole. Acknowledged text is in the file; other text is there wholly or not at
all; and all links to a renamed note use its current name.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio
from mcp import StdioServerParameters, stdio_client
from mcp.client import Client

from tests.system.running import REPOSITORY, RunningKernel

SERVICES = ("knowledge", "retrieve", "yaml")
WRITERS, LINKING, LINES = 3, 4, 300
PAUSE_S = 0.3

_LINE = re.compile(r"(\d+) \d+ [0-9a-f]{32}")

Editions = tuple[int, int]
"""Editions of a note's lines, and of its last section."""


def lines_of(edition: int) -> str:
    marks = (f"{edition} {number}" for number in range(LINES))
    return "".join(f"{mark} {hashlib.md5(mark.encode()).hexdigest()}\n" for mark in marks)


def note(editions: Editions) -> str:
    return f"# Note\n\n{lines_of(editions[0])}\n## Last\n\nof {editions[1]}\n"


def editions_in(text: str) -> Editions | None:
    """What a note is of; None where it is not whole."""
    found, last = _LINE.search(text), re.search(r"\nof (\d+)\n\Z", text)
    if found is None or last is None:
        return None
    editions = int(found[1]), int(last[1])
    return editions if note(editions) == text else None


@dataclass
class Seen:
    """Observations made during the kills."""

    acknowledged: int = 0
    renamed: int = 0
    kills: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


async def torment(kernel: RunningKernel, root: Path, kills: int, *, seed: int = 0) -> Seen:
    """Kill `knowledge` so often while notes below `root` are written."""
    seen, dice, done = Seen(), random.Random(seed), trio.Event()
    arguments = ["-P", "-m", "kernel.cli", "stdio", "--surface", "all", "--data", str(kernel.data_dir)]
    server = StdioServerParameters(command=sys.executable, args=arguments, cwd=REPOSITORY, env=dict(os.environ))
    for number in range(LINKING):
        (root / f"linking{number}.md").write_text(f"# {number}\n\n[[named0]] and [it](named0.md).\n")
    (root / "named0.md").write_text("# The one that is renamed\n")
    async with Client(stdio_client(server)) as client:
        await trio.to_thread.run_sync(kernel.call, "knowledge_ingest", {"vectors": False})

        async def tool(name: str, **arguments: object) -> dict[str, Any] | None:
            answer = await client.call_tool(name, arguments)
            if not answer.is_error:
                seen.acknowledged += name != "notes_status"
                result: dict[str, Any] = answer.structured_content or {}
                return result
            said = str(answer.content[0].model_dump().get("text"))
            seen.failures[re.sub(r"\d+", "…", said)[:160]] += 1
            return None

        async with trio.open_nursery() as nursery:
            for writer in range(WRITERS):
                nursery.start_soon(_write, tool, root / f"written{writer}.md", seen, done)
            nursery.start_soon(_rename, tool, root, seen, done)
            for _ in range(kills):
                before = seen.acknowledged
                await trio.sleep(dice.uniform(0, PAUSE_S))
                await trio.to_thread.run_sync(kernel.wait_ready, "knowledge")
                await trio.to_thread.run_sync(kernel.kill, "knowledge")
                seen.kills += 1
                with trio.fail_after(60):
                    while seen.acknowledged == before:  # noqa: ASYNC110  # calls of clients have no event here
                        await trio.sleep(0.002)
            done.set()
    return seen


async def _write(tool: Any, path: Path, seen: Seen, done: trio.Event) -> None:
    """Write a note again and again, alternately whole and in part, and look at the file after each answer."""
    edition = 0
    now: Editions | None = None
    while not done.is_set():
        edition += 1
        if now is None or edition % 2:
            wanted = (edition, edition)
            held = {} if now is None else {"if_match": hashlib.sha256(note(now).encode()).hexdigest()}
            answer = await tool("notes_write", path=str(path), content=note(wanted), **held)
        else:
            wanted = (now[0], edition)
            section = {"heading": "Note > Last", "content": f"of {edition}"}
            answer = await tool("notes_edit", path=str(path), section=section)
        text = _text(path)
        found = editions_in(text)
        if found != wanted and (answer is not None or (found != now and (now or text))):
            seen.wrong.append(f"{path.name} is {found} after {now}, and {wanted} was answered by {answer}")
        elif answer is not None and answer["hash"] != hashlib.sha256(text.encode()).hexdigest():
            seen.wrong.append(f"{path.name}: the answer has another hash")
        now = found


async def _rename(tool: Any, root: Path, seen: Seen, done: trio.Event) -> None:
    """Rename a note again and again, and look at the links to it once the service has answered something."""
    number = 0
    while not done.is_set():
        answer = await tool("notes_rename", path=f"named{number}.md", to=f"named{number + 1}.md")
        # What a death has left is finished before anything is answered.
        while await tool("notes_status") is None:
            pass
        if answer is not None or not _text(root / f"named{number}.md"):
            number += 1
            seen.renamed += 1
        if wrong := _other_links(root, f"named{number}"):
            seen.wrong.append(f"{wrong}, after {answer}")
            return


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _other_links(root: Path, name: str) -> str:
    """What does not name the note as it is named; empty where all does."""
    names = [path.stem for path in root.glob("named*.md")]
    texts = {path.name: path.read_text() for path in root.glob("linking*.md")}
    others = {path: text for path, text in texts.items() if f"[[{name}]] and [it]({name}.md)." not in text}
    return f"of {names}, for {name}: {others}" if others or names != [name] else ""


def audit(kernel: RunningKernel, root: Path) -> list[str]:
    """Return the errors that remain once all work is done; empty if all is well."""
    kernel.wait_ready()
    kernel.call("knowledge_ingest", {"vectors": False}, timeout_s=120)
    wrong = []
    for path in sorted(root.glob("written*.md")):
        text = path.read_text()
        if (found := editions_in(text)) is None:
            wrong.append(f"{path.name} is torn: {text[:80]!r} … {text[-80:]!r}")
            continue
        kernel.call("notes_edit", {"path": str(path), "append": f"audited{path.stem}x{found[1]}"})
        hits = kernel.call("notes_search", {"query": f"audited{path.stem}x{found[1]}"})["results"]
        if [hit["id"] for hit in hits][:1] != [path.stem]:
            wrong.append(f"{path.name} is not found by the text written last")
    wrong += [f"{path} was left over" for path in root.iterdir() if not path.name.endswith(".md")]
    return wrong
